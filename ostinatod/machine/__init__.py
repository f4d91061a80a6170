"""What this machine is and does, by measurement: GPUs, processors, memory. Kept under a fingerprint of the hardware."""
