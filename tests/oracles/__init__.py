"""Every algorithm's update once more, from its paper and in plain torch: what the learners are compared with.

Nothing in this package but `comparing` knows of rl_training. A reference gets copies of the initial networks, the batches and the options.
"""
