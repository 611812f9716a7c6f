"""DeepSpeed's other names: what each is, does or refuses."""
