// The array comes from the mark that nest-assign-mapping leaves; another one is refused.

// RUN: cnncc opt %s -p 'nest-assign-mapping{arch=spatial-4x4},nest-tile,nest-permute,nest-unroll,nest-stage,nest-to-array,array-prefetch,array-allocate' | filecheck %s
// CHECK: builtin.module attributes {cnncc.arch = "spatial-4x4 (4 x 4 PEs, #{{[0-9a-f]+}})"} {
// CHECK: array.mac

// RUN: not cnncc opt %s -p 'nest-assign-mapping{arch=spatial-4x4},nest-tile,nest-permute,nest-unroll,nest-stage,nest-to-array{arch=spatial-8x8}' 2>&1 | filecheck %s --check-prefix OTHER
// OTHER: cnncc: nest-to-array: the layers are mapped to spatial-4x4 (4 x 4 PEs, #{{[0-9a-f]+}}), not to spatial-8x8 (8 x 8 PEs, #{{[0-9a-f]+}}): leave out arch

// RUN: not cnncc opt %s -p 'nest-to-array' 2>&1 | filecheck %s --check-prefix NONE
// NONE: cnncc: nest-to-array: nothing says which array the layers are mapped to: arch=NAME or FILE

func.func @main(%x: tensor<1x3x7x5xi16> {onnx.name = "x", cnn.quant = #cnn.quant<scale = 0.5>}) -> (tensor<1x3x3x2xi16> {onnx.name = "y", cnn.quant = #cnn.quant<scale = 0.5>}) {
  %0 = nest.layer "max" %x sizes <n = 1, k = 3, c = 1, h = 3, w = 2, r = 2, s = 2> window <kernel = [2, 2], stride = [2, 2], group = 3, fill = -32768>
       then <> label "pool0" : tensor<1x3x7x5xi16> -> tensor<1x3x3x2xi16> {
    nest.for k { nest.for h { nest.for w { nest.for r { nest.for s { nest.mac } } } } }
  }
  func.return %0 : tensor<1x3x3x2xi16>
}
