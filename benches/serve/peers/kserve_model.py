"""A kserve.Model that wraps ONNX Runtime. Arguments: HTTP port, gRPC port, NAME=FILE for each model."""

import sys

import kserve
import onnxruntime


class OnnxModel(kserve.Model):
    def __init__(self, name, file):
        super().__init__(name)
        self.session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        self.ready = True

    def predict(self, payload, headers=None, response_headers=None):
        inputs = {value.name: value.as_numpy() for value in payload.inputs}
        names = [output.name for output in self.session.get_outputs()]
        outputs = []
        for name, array in zip(names, self.session.run(names, inputs)):
            output = kserve.InferOutput(name, list(array.shape), "FP32")
            output.set_data_from_numpy(array, binary_data=True)
            outputs.append(output)
        # kserve rejects responses without an id.
        return kserve.InferResponse(payload.id or "0", self.name, outputs)


if __name__ == "__main__":
    models = [OnnxModel(*spec.split("=", 1)) for spec in sys.argv[3:]]
    kserve.ModelServer(http_port=int(sys.argv[1]), grpc_port=int(sys.argv[2]), workers=1).start(models)
