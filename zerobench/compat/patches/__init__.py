"""Other libraries on this engine: places of torch, accelerate, transformers, peft and Lightning that it replaces."""
