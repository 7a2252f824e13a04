// IR of another level has no nodes to lower.

// RUN: not cnncc opt %s -p onnx-to-cnn 2>&1 | filecheck %s
// CHECK: onnx-to-cnn: cnn.clamp is no node of ONNX: give IR of the onnx level
func.func @main(%x: tensor<1x3x4x5xi16>) -> tensor<1x3x4x5xi16> {
  %0 = cnn.clamp %x by <clamp = [0, 100]> label "r" : tensor<1x3x4x5xi16> -> tensor<1x3x4x5xi16>
  func.return %0 : tensor<1x3x4x5xi16>
}
