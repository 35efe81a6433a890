"""Starting the ranks of a job on this host."""
