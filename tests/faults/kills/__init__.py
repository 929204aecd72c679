"""Workers killed by SIGKILL at random instants, and a look at what they leave behind."""
