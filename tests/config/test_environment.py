from relax_core.config.environment import KNOWN_VARIABLES, misspelt_variables


def test_near_misses_are_told_and_others_left_alone() -> None:
    right = dict.fromkeys(KNOWN_VARIABLES, "x")
    assert misspelt_variables({**right, "PATH": "", "RELAX_HOME": "", "RELAXED": ""}) == []
    assert misspelt_variables({"RELAX_PLUGIN": "", "relax_plugins": "", "RELAX_ASUME_BACKEND": ""}) == [
        "the environment variable RELAX_ASUME_BACKEND does nothing; did you mean 'RELAX_ASSUME_BACKEND'?",
        "the environment variable RELAX_PLUGIN does nothing; did you mean 'RELAX_PLUGINS'?",
        "the environment variable relax_plugins does nothing; did you mean 'RELAX_PLUGINS'?",
    ]
