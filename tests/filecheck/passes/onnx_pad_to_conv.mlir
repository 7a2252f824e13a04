// RUN: cnncc opt %s -p onnx-pad-to-conv | filecheck %s

builtin.module attributes {onnx.opset_imports = {ai.onnx = 17 : i64}} {
func.func @main(%x: tensor<1x2x4x6xf32>) -> (tensor<1x4x2x6xf32>, tensor<1x3x4x6xf32>, tensor<1x4x4x6xf32>) {
  %0 = weights.constant : tensor<1xi64> = dense<0> : tensor<1xi64>
  %2 = weights.constant : tensor<1xi64> = dense<2> : tensor<1xi64>
  %9 = weights.constant : tensor<1xi64> = dense<9> : tensor<1xi64>
  %both = weights.constant : tensor<8xi64> = dense<[0, 1, 0, 0, 0, 1, 0, 0]> : tensor<8xi64>
  %last = weights.constant : tensor<8xi64> = dense<[0, 0, 0, 0, 0, 1, 0, 0]> : tensor<8xi64>

  // Every second row, then a channel of zeros on each side: the convolution has the name of the Pad.
  // CHECK: %[[W:.*]] = weights.constant : tensor<4x2x1x1xf32>
  // CHECK-NEXT: %[[A:.*]] = onnx.node "Conv" name "p"(%x, %[[W]]) {strides = array<i64: 2, 1>} : (tensor<1x2x4x6xf32>, tensor<4x2x1x1xf32>) -> tensor<1x4x2x6xf32>
  // CHECK-NEXT: onnx.node "Relu"(%[[A]])
  %s = onnx.node "Slice"(%x, %0, %9, %2, %2) : (tensor<1x2x4x6xf32>, tensor<1xi64>, tensor<1xi64>, tensor<1xi64>, tensor<1xi64>) -> tensor<1x2x2x6xf32>
  %p = onnx.node "Pad" name "p"(%s, %both) : (tensor<1x2x2x6xf32>, tensor<8xi64>) -> tensor<1x4x2x6xf32>
  %a = onnx.node "Relu"(%p) : (tensor<1x4x2x6xf32>) -> tensor<1x4x2x6xf32>

  // Channels behind the others alone.
  // CHECK: %[[B:.*]] = onnx.node "Conv"(%x, %{{.*}}) {strides = array<i64: 1, 1>} : (tensor<1x2x4x6xf32>, tensor<3x2x1x1xf32>) -> tensor<1x3x4x6xf32>
  %q = onnx.node "Pad"(%x, %last) : (tensor<1x2x4x6xf32>, tensor<8xi64>) -> tensor<1x3x4x6xf32>
  %b = onnx.node "Relu"(%q) : (tensor<1x3x4x6xf32>) -> tensor<1x3x4x6xf32>

  // The host reads it.
  // CHECK: %[[C:.*]] = onnx.node "Pad"(%x, %both)
  // CHECK-NEXT: func.return
  %c = onnx.node "Pad"(%x, %both) : (tensor<1x2x4x6xf32>, tensor<8xi64>) -> tensor<1x4x4x6xf32>
  func.return %a, %b, %c : tensor<1x4x2x6xf32>, tensor<1x3x4x6xf32>, tensor<1x4x4x6xf32>
}
}
