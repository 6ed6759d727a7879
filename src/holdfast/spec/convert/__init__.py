"""Job files of others, converted to drafts of ours: DLRover's ElasticJob, MindCluster's AscendJob, Volcano's Job.

What they say that means nothing here gets a note of its own, so that nobody believes in a setting that is not there.
"""
