"""Training on pytorch-lightning: runs that can be killed, resumed and spread over machines."""
