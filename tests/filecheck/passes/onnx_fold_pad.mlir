// RUN: cnncc opt %s -p onnx-fold-pad | filecheck %s

builtin.module attributes {onnx.opset_imports = {ai.onnx = 18 : i64}} {
func.func @main(%x: tensor<1x2x5x7xf32>, %p: tensor<8xi64>, %w: tensor<3x2x3x3xf32>) {
  %pads = weights.constant : tensor<8xi64> = dense<[0, 0, 1, 2, 0, 0, 3, 0]> : tensor<8xi64>
  %zero = weights.constant : tensor<f32> = dense<0.0> : tensor<f32>
  %one = weights.constant : tensor<f32> = dense<1.0> : tensor<f32>
  %none = onnx.absent

  // Asymmetric pads add to the convolution's own; the Pad, without a use, goes.
  // CHECK-NOT: "Pad" name "a"
  // CHECK: onnx.node "Conv" name "A"(%x, %w) {pads = array<i64: 2, 3, 4, 1>}
  %a = onnx.node "Pad" name "a"(%x, %pads, %zero) : (tensor<1x2x5x7xf32>, tensor<8xi64>, tensor<f32>) -> tensor<1x2x9x9xf32>
  %A = onnx.node "Conv" name "A"(%a, %w) {pads = array<i64: 1, 1, 1, 1>} : (tensor<1x2x9x9xf32>, tensor<3x2x3x3xf32>) -> tensor<1x3x9x9xf32>

  // Before opset 11 pads and value are attributes.
  // CHECK: onnx.node "Conv" name "B"(%x, %w) {pads = array<i64: 1, 2, 3, 0>}
  %b = onnx.node "Pad" name "b"(%x) {pads = array<i64: 0, 0, 1, 2, 0, 0, 3, 0>, value = 0.0 : f32} : (tensor<1x2x5x7xf32>) -> tensor<1x2x9x9xf32>
  %B = onnx.node "Conv" name "B"(%b, %w) {auto_pad = "VALID"} : (tensor<1x2x9x9xf32>, tensor<3x2x3x3xf32>) -> tensor<1x3x7x7xf32>

  // Since opset 18 the pads may be of some axes only, counted from the end.
  // CHECK: onnx.node "Conv" name "C"(%x, %w) {pads = array<i64: 4, 0, 5, 0>}
  %axis = weights.constant : tensor<1xi64> = dense<-2> : tensor<1xi64>
  %rows = weights.constant : tensor<2xi64> = dense<[4, 5]> : tensor<2xi64>
  %c = onnx.node "Pad" name "c"(%x, %rows, %none, %axis) : (tensor<1x2x5x7xf32>, tensor<2xi64>, none, tensor<1xi64>) -> tensor<1x2x14x7xf32>
  %C = onnx.node "Conv" name "C"(%c, %w) : (tensor<1x2x14x7xf32>, tensor<3x2x3x3xf32>) -> tensor<1x3x12x5xf32>

  // Ones are not what a convolution pads with; nor is a reflection.
  // CHECK: %d = onnx.node "Pad"
  // CHECK: onnx.node "Conv" name "D"(%d, %w)
  %d = onnx.node "Pad" (%x, %pads, %one) : (tensor<1x2x5x7xf32>, tensor<8xi64>, tensor<f32>) -> tensor<1x2x9x9xf32>
  %D = onnx.node "Conv" name "D"(%d, %w) : (tensor<1x2x9x9xf32>, tensor<3x2x3x3xf32>) -> tensor<1x3x7x7xf32>
  // CHECK: onnx.node "Conv" name "E"(%e, %w)
  %e = onnx.node "Pad" (%x, %pads) {mode = "reflect"} : (tensor<1x2x5x7xf32>, tensor<8xi64>) -> tensor<1x2x9x9xf32>
  %E = onnx.node "Conv" name "E"(%e, %w) : (tensor<1x2x9x9xf32>, tensor<3x2x3x3xf32>) -> tensor<1x3x7x7xf32>

  // Channels added, pixels cut off, pads known only at run time.
  // CHECK: onnx.node "Conv" name "F"(%f, %w)
  %channel = weights.constant : tensor<8xi64> = dense<[0, 1, 0, 0, 0, 0, 0, 0]> : tensor<8xi64>
  %f = onnx.node "Pad" (%x, %channel) : (tensor<1x2x5x7xf32>, tensor<8xi64>) -> tensor<1x3x5x7xf32>
  %F = onnx.node "Conv" name "F"(%f, %w) : (tensor<1x3x5x7xf32>, tensor<3x2x3x3xf32>) -> tensor<1x3x3x5xf32>
  // CHECK: onnx.node "Conv" name "G"(%g, %w)
  %cut = weights.constant : tensor<8xi64> = dense<[0, 0, -1, 0, 0, 0, 2, 0]> : tensor<8xi64>
  %g = onnx.node "Pad" (%x, %cut) : (tensor<1x2x5x7xf32>, tensor<8xi64>) -> tensor<1x2x6x7xf32>
  %G = onnx.node "Conv" name "G"(%g, %w) : (tensor<1x2x6x7xf32>, tensor<3x2x3x3xf32>) -> tensor<1x3x4x5xf32>
  // CHECK: onnx.node "Conv" name "H"(%h, %w)
  %h = onnx.node "Pad" (%x, %p) : (tensor<1x2x5x7xf32>, tensor<8xi64>) -> tensor<?x?x?x?xf32>
  %H = onnx.node "Conv" name "H"(%h, %w) : (tensor<?x?x?x?xf32>, tensor<3x2x3x3xf32>) -> tensor<?x3x?x?xf32>

  // The size that SAME pads for is that of the padded image.
  // CHECK: onnx.node "Conv" name "I"(%i, %w)
  %i = onnx.node "Pad" (%x, %pads) : (tensor<1x2x5x7xf32>, tensor<8xi64>) -> tensor<1x2x9x9xf32>
  %I = onnx.node "Conv" name "I"(%i, %w) {auto_pad = "SAME_UPPER"} : (tensor<1x2x9x9xf32>, tensor<3x2x3x3xf32>) -> tensor<1x3x9x9xf32>

  // Average pooling counts the zeros; without pads of its own it can be told to. MaxPool pads with minus infinity.
  // CHECK: onnx.node "AveragePool" name "J"(%x) {kernel_shape = array<i64: 4, 3>, pads = array<i64: 1, 2, 3, 0>, count_include_pad = 1 : i64}
  // CHECK: onnx.node "MaxPool" name "K"(%j)
  %j = onnx.node "Pad" (%x, %pads) : (tensor<1x2x5x7xf32>, tensor<8xi64>) -> tensor<1x2x9x9xf32>
  %J = onnx.node "AveragePool" name "J"(%j) {kernel_shape = array<i64: 4, 3>} : (tensor<1x2x9x9xf32>) -> tensor<1x2x6x7xf32>
  %K = onnx.node "MaxPool" name "K"(%j) {kernel_shape = array<i64: 4, 3>} : (tensor<1x2x9x9xf32>) -> tensor<1x2x6x7xf32>
  // Own pads that do not count; windows that hang over the edge; pads not smaller than the window.
  // CHECK: onnx.node "AveragePool" name "L"(%l)
  // CHECK: onnx.node "AveragePool" name "M"(%l)
  // CHECK: onnx.node "AveragePool" name "N"(%l)
  %l = onnx.node "Pad" (%x, %pads) : (tensor<1x2x5x7xf32>, tensor<8xi64>) -> tensor<1x2x9x9xf32>
  %L = onnx.node "AveragePool" name "L"(%l) {kernel_shape = array<i64: 5, 5>, pads = array<i64: 0, 0, 0, 1>} : (tensor<1x2x9x9xf32>) -> tensor<1x2x5x6xf32>
  %M = onnx.node "AveragePool" name "M"(%l) {kernel_shape = array<i64: 5, 5>, ceil_mode = 1 : i64} : (tensor<1x2x9x9xf32>) -> tensor<1x2x5x5xf32>
  %N = onnx.node "AveragePool" name "N"(%l) {kernel_shape = array<i64: 3, 3>} : (tensor<1x2x9x9xf32>) -> tensor<1x2x7x7xf32>
  func.return
}
}
