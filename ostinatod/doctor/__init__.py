"""What is wrong with this installation, and which command comes next: one small check for each thing that can be.

A check looks at what it is given and returns a `Finding`; it changes nothing and never asks the network. `examination`
puts the checks of this machine together; nothing here may raise to its caller.
"""
