"""What is known about models and machines, and the plans made from it. Imports numpy and the standard library only."""
