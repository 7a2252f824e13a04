// RUN: cnncc opt %s -p onnx-fold-transpose | filecheck %s

builtin.module attributes {onnx.opset_imports = {ai.onnx = 13 : i64}} {
func.func @main(%x: tensor<1x2x1x3xf32>) {
  %w = weights.constant : tensor<6x1xf32> = dense<[[0.0], [1.0], [2.0], [3.0], [4.0], [5.0]]> : tensor<6x1xf32>
  %v = weights.constant : tensor<1x6xf32> = dense<[[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]]> : tensor<1x6xf32>
  %rows = weights.constant : tensor<2xi64> = dense<[-1, 6]> : tensor<2xi64>

  // Channels last: a word of channel 0, one of channel 1, … The image has all of channel 0 first.
  // CHECK-NOT: "Transpose" name "a"
  // CHECK: %r = onnx.node "Reshape"(%x, %rows)
  // CHECK: %[[W:.*]] = weights.constant : tensor<6x1xf32> = #weights.ref
  // CHECK: onnx.node "MatMul" name "A"(%r, %[[W]])
  %a = onnx.node "Transpose" name "a"(%x) {perm = array<i64: 0, 2, 3, 1>} : (tensor<1x2x1x3xf32>) -> tensor<1x1x3x2xf32>
  %r = onnx.node "Reshape"(%a, %rows) : (tensor<1x1x3x2xf32>, tensor<2xi64>) -> tensor<1x6xf32>
  %A = onnx.node "MatMul" name "A"(%r, %w) : (tensor<1x6xf32>, tensor<6x1xf32>) -> tensor<1x1xf32>

  // The columns of weights that are turned themselves.
  // CHECK: %[[V:.*]] = weights.constant : tensor<1x6xf32> = #weights.ref
  // CHECK: onnx.node "Gemm" name "B"(%{{.*}}, %[[V]])
  %b = onnx.node "Transpose" (%x) {perm = array<i64: 0, 2, 3, 1>} : (tensor<1x2x1x3xf32>) -> tensor<1x1x3x2xf32>
  %s = onnx.node "Flatten"(%b) : (tensor<1x1x3x2xf32>) -> tensor<1x6xf32>
  %B = onnx.node "Gemm" name "B"(%s, %v) {transB = 1 : i64} : (tensor<1x6xf32>, tensor<1x6xf32>) -> tensor<1x1xf32>

  // Something else reads the row.
  // CHECK: %c = onnx.node "Transpose"
  // CHECK: onnx.node "MatMul" name "C"(%{{.*}}, %w)
  %c = onnx.node "Transpose" (%x) {perm = array<i64: 0, 2, 3, 1>} : (tensor<1x2x1x3xf32>) -> tensor<1x1x3x2xf32>
  %t = onnx.node "Flatten"(%c) : (tensor<1x1x3x2xf32>) -> tensor<1x6xf32>
  %C = onnx.node "MatMul" name "C"(%t, %w) : (tensor<1x6xf32>, tensor<6x1xf32>) -> tensor<1x1xf32>
  %D = onnx.node "Relu" (%t) : (tensor<1x6xf32>) -> tensor<1x6xf32>

  // A product of codes, with the same codes between the Transpose and the row.
  // CHECK: %u = onnx.node "Flatten"(%x)
  // CHECK: %[[Q:.*]] = onnx.node "QuantizeLinear" name "q"(%u, %step, %zero)
  // CHECK: %[[W:.*]] = weights.constant : tensor<6x1xi8> = #weights.ref
  // CHECK: onnx.node "QLinearMatMul"(%[[Q]], %step, %zero, %[[W]], %step, %zero, %step, %zero)
  %step = weights.constant : tensor<f32> = dense<0.5> : tensor<f32>
  %zero = weights.constant : tensor<i8> = dense<3> : tensor<i8>
  %k = weights.constant : tensor<6x1xi8> = dense<[[0], [1], [2], [3], [4], [5]]> : tensor<6x1xi8>
  %d = onnx.node "Transpose" (%x) {perm = array<i64: 0, 2, 3, 1>} : (tensor<1x2x1x3xf32>) -> tensor<1x1x3x2xf32>
  %e = onnx.node "QuantizeLinear"(%d, %step, %zero) : (tensor<1x1x3x2xf32>, tensor<f32>, tensor<i8>) -> tensor<1x1x3x2xi8>
  %f = onnx.node "DequantizeLinear"(%e, %step, %zero) : (tensor<1x1x3x2xi8>, tensor<f32>, tensor<i8>) -> tensor<1x1x3x2xf32>
  %u = onnx.node "Flatten"(%f) : (tensor<1x1x3x2xf32>) -> tensor<1x6xf32>
  %q = onnx.node "QuantizeLinear" name "q"(%u, %step, %zero) : (tensor<1x6xf32>, tensor<f32>, tensor<i8>) -> tensor<1x6xi8>
  %E = onnx.node "QLinearMatMul"(%q, %step, %zero, %k, %step, %zero, %step, %zero) :
      (tensor<1x6xi8>, tensor<f32>, tensor<i8>, tensor<6x1xi8>, tensor<f32>, tensor<i8>, tensor<f32>, tensor<i8>) -> tensor<1x1xi8>
  func.return
}
}
