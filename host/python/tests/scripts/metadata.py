import os

import onnxruntime as ort

session = ort.InferenceSession(os.path.join(FOLDER, "half.onnx"))
meta = session.get_modelmeta()
print(meta.producer_name, meta.version, meta.graph_name, repr(meta.domain), repr(meta.description))
labels = meta.custom_metadata_map["labels"].split(",")
print(labels, sorted(meta.custom_metadata_map))
