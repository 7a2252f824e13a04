// A module by hand: arguments and results have names, by which inputs and outputs are found.

// RUN: not cnncc opt %s -p 'nest-to-array{arch=spatial-4x4}' 2>&1 | filecheck %s
// CHECK: cnncc: nest-to-array: not all arguments of @main have a name: give each {onnx.name = "…"}, and cnn.quant where the array reads or writes it

func.func @main(%x: tensor<1x2x8x4xi16>) -> tensor<1x2x4x2xi16> {
  %2 = nest.layer "max" %x sizes <n = 1, k = 2, c = 1, h = 4, w = 2, r = 2, s = 2>
       window <kernel = [2, 2], stride = [2, 2], group = 2> then <> mapping "k > h > w > ifmap@rf*2 > {r > s}" label "p2" : tensor<1x2x8x4xi16> -> tensor<1x2x4x2xi16> {
    nest.for k { nest.for h { nest.for w { nest.for r { nest.for s { nest.mac } } } } }
  }
  func.return %2 : tensor<1x2x4x2xi16>
}
