"""What a policy gradient is put together from, one file each: settings, what they ask of the plan, and their part of
the loss or of the rewards.

Settings are mixins of a configuration class. Their ``requirements`` add to those of the mixins after them; what a
combination cannot honour is refused by their validators.
"""
