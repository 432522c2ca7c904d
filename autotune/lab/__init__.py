"""The lab: a small cluster of Linux namespaces with real TCP, real bandwidth limits and real CPU quotas on one machine."""
