"""The shipped workloads, one readable file each. Importing a model file loads torch; the registry does so late."""
