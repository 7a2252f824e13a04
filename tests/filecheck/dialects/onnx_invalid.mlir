// RUN: cnncc opt %s --split-input-file --verify-diagnostics | filecheck %s

// CHECK: 2 output names for 1 results
func.func @main(%x: tensor<3xf32>) {
  %y = onnx.node "Relu"(%x) outputs ["a", "b"] : (tensor<3xf32>) -> tensor<3xf32>
  func.return
}

// -----

// CHECK: 2 captures but only 1 operands
func.func @main(%x: tensor<3xf32>) {
  %y = onnx.node "If"(%x) captures ["a", "b"] : (tensor<3xf32>) -> tensor<3xf32>
  func.return
}
