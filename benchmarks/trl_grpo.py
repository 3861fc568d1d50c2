"""TRL's GRPOTrainer on the quickstart's task: same model, tasks, reward, batch and sampling. See grpo_step.py."""

import argparse

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from relax_core.datasets.config import GeneratedDatasetConfig
from relax_core.datasets.generated import GeneratedDataset

GROUPS, SAMPLES, NEW_TOKENS = 32, 8, 5


def main() -> None:
    """Trains for a number of updates and says nothing."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--updates", type=int, required=True)
    parser.add_argument("--output", required=True)
    arguments = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(arguments.model, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype="float32")
    tasks = GeneratedDataset(GeneratedDatasetConfig(task="sort_digits", digits=4, split="train", heldout=200), None)
    rows = [{"prompt": task.prompt, "label": task.label} for task in (tasks[index] for index in range(len(tasks)))]

    def reward(completions: list[str], label: list[str], completion_ids: list[list[int]], **_: object) -> list[float]:
        triples = zip(completions, label, completion_ids, strict=True)
        return [float(text == right and tokenizer.eos_token_id in ids) for text, right, ids in triples]

    settings = GRPOConfig(
        output_dir=arguments.output,
        per_device_train_batch_size=GROUPS * SAMPLES,
        num_generations=SAMPLES,
        max_completion_length=NEW_TOKENS,
        temperature=1.0,
        beta=0.0,
        epsilon=0.2,
        epsilon_high=0.28,
        learning_rate=2e-4,
        lr_scheduler_type="constant",
        adam_beta2=0.99,
        max_grad_norm=1.0,
        max_steps=arguments.updates,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        logging_steps=1,
        report_to="tensorboard",
        save_strategy="no",
        disable_tqdm=True,
        seed=0,
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=settings,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
    )
    trainer.train()


if __name__ == "__main__":
    main()
