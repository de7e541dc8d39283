"""MLServer with ONNX Runtime. Arguments: HTTP port, gRPC port, NAME=FILE for each model."""

import asyncio
import sys

import mlserver
import onnxruntime
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse


class OnnxModel(mlserver.MLModel):
    async def load(self):
        file = self.settings.parameters.uri
        self.session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        return True

    async def predict(self, payload):
        inputs = {value.name: NumpyCodec.decode_input(value) for value in payload.inputs}
        names = [output.name for output in self.session.get_outputs()]
        arrays = self.session.run(names, {name: array.astype("float32") for name, array in inputs.items()})
        outputs = [NumpyCodec.encode_output(name, array) for name, array in zip(names, arrays)]
        return InferenceResponse(model_name=self.name, outputs=outputs)


async def main():
    settings = mlserver.Settings(
        host="127.0.0.1", http_port=int(sys.argv[1]), grpc_port=int(sys.argv[2]), metrics_port=int(sys.argv[1]) + 5,
        parallel_workers=0, load_models_at_startup=False,
    )
    models = [
        mlserver.ModelSettings(name=name, implementation=OnnxModel, parameters={"uri": file})
        for name, file in (spec.split("=", 1) for spec in sys.argv[3:])
    ]
    await mlserver.MLServer(settings).start(models)


if __name__ == "__main__":
    asyncio.run(main())
