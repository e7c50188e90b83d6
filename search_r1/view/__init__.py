"""Ways to look at rollouts and runs. The rest of the package never imports this one."""
