// RUN: cnncc opt %s -p 'onnx-fold-constants{max-bytes=4096},onnx-dead-code' | filecheck %s

builtin.module attributes {onnx.opset_imports = {ai.onnx = 17 : i64}} {
// The result types of the function follow: the Reshape at the end gets its shape from folded constants.
// CHECK: func.func @main(%x: tensor<2x3x5xf32>) -> (tensor<6x5xf32>, tensor<3xf32>, tensor<1025xf32>)
func.func @main(%x: tensor<2x3x5xf32>) -> (tensor<?x?xf32>, tensor<3xf32>, tensor<1025xf32>) {
  // Shape of a known shape needs no value: here its last dimension, in a chain of folded nodes.
  // CHECK-DAG: %shape = weights.constant : tensor<2xi64> = #weights.ref<
  %last = onnx.node "Shape"(%x) {start = -1 : i64} : (tensor<2x3x5xf32>) -> tensor<1xi64>
  %rest = weights.constant : tensor<1xi64> = dense<-1> : tensor<1xi64>
  %shape = onnx.node "Concat"(%rest, %last) outputs ["s"] {axis = 0 : i64} : (tensor<1xi64>, tensor<1xi64>) -> tensor<?xi64>

  // Random numbers are not constants.
  // CHECK-DAG: onnx.node "RandomNormal"
  %random = onnx.node "RandomNormal"() {shape = array<i64: 3>} : () -> tensor<3xf32>

  // 4100 bytes are over the limit given above.
  // CHECK-DAG: onnx.node "ConstantOfShape"
  %many = weights.constant : tensor<1xi64> = dense<1025> : tensor<1xi64>
  %big = onnx.node "ConstantOfShape"(%many) : (tensor<1xi64>) -> tensor<1025xf32>

  // CHECK: onnx.node "Reshape"(%x, %shape) : (tensor<2x3x5xf32>, tensor<2xi64>) -> tensor<6x5xf32>
  %y = onnx.node "Reshape"(%x, %shape) : (tensor<2x3x5xf32>, tensor<?xi64>) -> tensor<?x?xf32>
  func.return %y, %random, %big : tensor<?x?xf32>, tensor<3xf32>, tensor<1025xf32>
}
}
