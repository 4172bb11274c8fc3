"""More benchmark tools: bonnie++, dd, hdparm and sysbench."""
