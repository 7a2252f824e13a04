// A residual leads to no other core. Inside of a core two engines would read a value that is an ifmap, too.

// RUN: not cnncc opt %s -p 'nest-cores{arch=tcpa-4x4 cores="a;b;c" places="1x2@3,0;2x4@0,0;1x2@3,2"}' 2>&1 | filecheck %s --check-prefix OTHER
// OTHER: nest-cores: the result of layer 'a' is read by layer 'c': only the result of a core's last layer leaves it, and the first layer of the next core alone reads it

// RUN: not cnncc opt %s -p 'nest-cores{arch=tcpa-4x4 cores="a,b,c" places="1x2@3,0"}' 2>&1 | filecheck %s --check-prefix READERS
// READERS: nest-cores: core a..c: the result of layer a is read as an ifmap and as a residual: a load and a commit would read its bank of the GLB, one engine does (CORE-5)

// RUN: not cnncc opt %s -p 'nest-cores{arch=tcpa-4x4 cores="a;b,c" places="1x2@3,0;3x4@0,0"}' 2>&1 | filecheck %s --check-prefix ALONE
// ALONE: nest-cores: the result of layer 'a' is read by layer 'c'
func.func @main(%x: tensor<1x4x4x4xi8>) -> tensor<1x4x4x4xi8> {
  %0 = nest.layer "mac" %x weights @u sizes <n = 1, k = 4, c = 4, h = 4, w = 4, r = 1, s = 1>
       window <kernel = [1, 1]> then <clamp = [0, 127]> label "a" : tensor<1x4x4x4xi8> -> tensor<1x4x4x4xi8> {
    nest.for k { nest.for h { nest.for w { nest.for c { nest.mac } } } }
  }
  %1 = nest.layer "mac" %0 weights @v sizes <n = 1, k = 4, c = 4, h = 4, w = 4, r = 3, s = 3>
       window <kernel = [3, 3], pad = [1, 1, 1, 1]> then <clamp = [0, 127]> label "b" : tensor<1x4x4x4xi8> -> tensor<1x4x4x4xi8> {
    nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
  }
  %2 = nest.layer "mac" %1 residual %0 : tensor<1x4x4x4xi8> weights @w sizes <n = 1, k = 4, c = 4, h = 4, w = 4, r = 1, s = 1>
       window <kernel = [1, 1]> then <factors = "f", clamp = [0, 127]> label "c" : tensor<1x4x4x4xi8> -> tensor<1x4x4x4xi8> {
    nest.for k { nest.for h { nest.for w { nest.for c { nest.mac } } } }
  }
  func.return %2 : tensor<1x4x4x4xi8>
}
