// RUN: cnncc opt %s -p 'cnn-choose-scheme{tin=4}' | filecheck %s
// RUN: cnncc opt %s -p 'cnn-choose-scheme{arch=tcpa-4x4}' | filecheck %s --check-prefix LANES
// RUN: not cnncc opt %s -p cnn-choose-scheme 2>&1 | filecheck %s --check-prefix NONE
// RUN: not cnncc opt %s -p 'cnn-choose-scheme{tin=4 mapper=true}' 2>&1 | filecheck %s --check-prefix MAPPER
// MAPPER: cnn-choose-scheme: mapper needs the array that layers are mapped for: arch=NAME or FILE

// Few maps; as many as multipliers; k = s, which comes first; one map for each kernel; k = s = 1, which is no window.
// tests/test_cnn_schemes.py has the notes.
// CHECK: label "few" {cnn.scheme = "kernel partition"}
// CHECK: label "many" {cnn.scheme = "inter-kernel"}
// CHECK: label "slides" {cnn.scheme = "intra-kernel, sliding window"}
// CHECK: label "alone" {cnn.scheme = "kernel partition"}
// CHECK: label "last" {cnn.scheme = "inter-kernel"}
// Two multipliers in each PE.
// LANES: label "few" {cnn.scheme = "inter-kernel"}
// NONE: cnn-choose-scheme: neither arch nor tin is given: name an array, or the multipliers of a PE
func.func @main(%x: tensor<2x3x8x8xi16>) -> tensor<2x4x4x4xi16> {
  %0 = cnn.conv %x weights @w window <kernel = [3, 3], pad = [1, 1, 1, 1]> label "few" : tensor<2x3x8x8xi16> -> tensor<2x4x8x8xi16>
  %1 = cnn.conv %0 weights @w window <kernel = [3, 3], pad = [1, 1, 1, 1]> label "many" : tensor<2x4x8x8xi16> -> tensor<2x4x8x8xi16>
  %2 = cnn.conv %1 weights @w window <kernel = [2, 2], stride = [2, 2]> label "slides" : tensor<2x4x8x8xi16> -> tensor<2x4x4x4xi16>
  %3 = cnn.conv %2 weights @w window <kernel = [3, 3], pad = [1, 1, 1, 1], group = 4> label "alone" : tensor<2x4x4x4xi16> -> tensor<2x4x4x4xi16>
  %4 = cnn.conv %3 weights @w window <kernel = [1, 1]> label "last" : tensor<2x4x4x4xi16> -> tensor<2x4x4x4xi16>
  func.return %4 : tensor<2x4x4x4xi16>
}
