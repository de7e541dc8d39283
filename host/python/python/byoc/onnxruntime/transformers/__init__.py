"""Part of `onnxruntime.transformers` that programs need for inference."""
