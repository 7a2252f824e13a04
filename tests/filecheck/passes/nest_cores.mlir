// A core for the first convolution, and one for a pool and a convolution that runs two stripes behind it: one more than needed.

// RUN: cnncc opt %s -p 'nest-cores{arch=tcpa-4x4 cores="a;pool,b" places="1x2@3,0;3x4@0,0"}' | filecheck %s
// CHECK:      cnncc.arch = "tcpa-4x4
// CHECK:      nest.cores "a..b" lag 1 : tensor<1x4x4x4xi8> {
// CHECK-NEXT:   nest.group "a" on <rows = 1, cols = 2, row0 = 3> : tensor<1x4x8x8xi8> {
// CHECK:          nest.layer "mac" %x weights @w {{.*}} label "a" delay 0 :
// CHECK-NEXT:       nest.stage weight in glb
// CHECK-NEXT:       nest.for h {
// CHECK:          nest.yield
// CHECK:        nest.channel "a" %{{.*}} keeps 2 : tensor<1x4x8x8xi8>
// CHECK-NEXT:   nest.group "pool..b" on <rows = 3, cols = 4> : tensor<1x4x4x4xi8> {
// CHECK:          label "pool" delay 0 keeps 4 :
// CHECK:          label "b" delay 2 :
// CHECK:        nest.yield
// CHECK-NOT:  nest.layer

// Stripes of two rows in the first core; a shorter delay; and a longer channel, of which the ring has as many rows.
// RUN: cnncc opt %s -p 'nest-cores{arch=tcpa-4x4 cores="a;pool,b" places="1x2@3,0;3x4@0,0" rows=2,1 delays="0;0,1" keeps=4 lag=2}' | filecheck %s --check-prefix LONG
// LONG: nest.cores "a..b" lag 2
// LONG: nest.for h step 2 {
// LONG: nest.channel "a" %{{.*}} keeps 4
// LONG: label "pool" delay 0 keeps 3 :
// LONG: label "b" delay 1 :

// RUN: not cnncc opt %s -p 'nest-cores{arch=tcpa-4x4 cores="a;pool,b" places="1x2@3,0;3x4@0,0" keeps=1}' 2>&1 | filecheck %s --check-prefix SMALL
// SMALL: nest-cores: channel a: keeps 1 rows, the fewest are 2: with fewer, pool waits for rows for which a has no slot (CHANNEL-3)

// A lag costs buffers, and no core waits for ever by it. An absurd one has no space.
// RUN: cnncc opt %s -p 'nest-cores{arch=tcpa-4x4 cores="a;pool,b" places="1x2@3,0;3x4@0,0" lag=5}' | filecheck %s --check-prefix LAG
// LAG: nest.cores "a..b" lag 5
// RUN: not cnncc opt %s -p 'nest-cores{arch=tcpa-4x4 cores="a;pool,b" places="1x2@3,0;3x4@0,0" lag=1000000000000}' 2>&1 | filecheck %s --check-prefix ABSURD
// ABSURD: nest-cores: {{[0-9,]+}} words of the GLB in {{[0-9,]+}} banks of {{[0-9,]+}} words, tcpa-4x4 has {{.*}}: a smaller lag, fewer rows

// RUN: not cnncc opt %s -p 'nest-cores{arch=tcpa-4x4 cores="a;pool,b" places="1x2@3,0;3x4@1,0"}' 2>&1 | filecheck %s --check-prefix MEET
// MEET: nest-cores: cores a and pool..b both have PE 3,0 (CHANNEL-1)

// RUN: not cnncc opt %s -p 'nest-cores{arch=tcpa-4x4 cores="a;pool,b" places="1x2@4,0;3x4@0,0"}' 2>&1 | filecheck %s --check-prefix OUTSIDE
// OUTSIDE: nest-cores: core a has 1 x 2 PEs from 4,0 on, tcpa-4x4 has 4 x 4 (CORE-1)

// RUN: not cnncc opt %s -p 'nest-cores{arch=spatial-4x4 cores="a;pool,b" places="1x2@3,0;3x4@0,0"}' 2>&1 | filecheck %s --check-prefix MOST
// MOST: nest-cores: 2 cores with PEs and one for the DRAM, spatial-4x4 has 1 (cores.most, CORE-1): another array

// RUN: not cnncc opt %s -p 'nest-cores{arch=tcpa-4x4 cores="a;fc" places="1x2@3,0;3x4@0,0"}' 2>&1 | filecheck %s --check-prefix HOST
// HOST: nest-cores: there is no layer 'fc' for a core; layers: a, pool, b; what the host computes is on no core (cores.host)

// RUN: not cnncc opt %s -p 'nest-cores{arch=tcpa-4x4 cores="a" places="1x2@3,0"}' 2>&1 | filecheck %s --check-prefix LEFT
// LEFT: nest-cores: layer 'pool' is on no core: all layers are

// RUN: not cnncc opt %s -p 'nest-cores{arch=tcpa-4x4 cores="pool;a,b" places="1x2@3,0;3x4@0,0"}' 2>&1 | filecheck %s --check-prefix ORDER
// ORDER: nest-cores: layer 'pool' stands where 'a' is due: cores follow each other as the layers do

// Rows of the last layer of each core: 8 of a, 4 of b.
// RUN: not cnncc opt %s -p 'nest-cores{arch=tcpa-4x4 cores="a;pool,b" places="1x2@3,0;3x4@0,0" rows=9,1}' 2>&1 | filecheck %s --check-prefix ROWS
// ROWS: nest-cores: core 'a': stripes of 9 rows: rows is 1 to 8, all of the last layer, 'a'
// RUN: not cnncc opt %s -p 'nest-cores{arch=tcpa-4x4 cores="a;pool,b" places="1x2@3,0;3x4@0,0" rows=5}' 2>&1 | filecheck %s --check-prefix HIGH
// HIGH: nest-cores: core 'pool..b': stripes of 5 rows: rows is 1 to 4, all of the last layer, 'b'
// RUN: not cnncc opt %s -p 'nest-cores{arch=tcpa-4x4 cores="a;pool,b" places="1x2@3,0;3x4@0,0" rows=0}' 2>&1 | filecheck %s --check-prefix NONE
// NONE: nest-cores: core 'a': stripes of 0 rows: rows is 1 to 8, all of the last layer, 'a'

// RUN: not cnncc opt %s -p 'nest-cores{arch=tcpa-4x4 cores="a;pool,b" places="1x2@3,0"}' 2>&1 | filecheck %s --check-prefix PLACES
// PLACES: nest-cores: places has 1 entries for 2 cores: one rectangle for each

// RUN: not cnncc opt %s -p 'nest-cores{arch=tcpa-4x4 cores="a;pool,b" places="1x2@3,0;3x4"}' 2>&1 | filecheck %s --check-prefix PLACE
// PLACE: nest-cores: '3x4' is no rectangle of PEs: ROWSxCOLS@ROW,COL, as 1x2@3,0

// RUN: not cnncc opt %s -p 'nest-cores{arch=tcpa-4x4 cores="a;pool,b,a" places="1x2@3,0;3x4@0,0"}' 2>&1 | filecheck %s --check-prefix TWICE
// TWICE: nest-cores: layer 'a' is named twice: a layer runs on one core

// RUN: not cnncc opt %s -p 'nest-cores{arch=tcpa-4x4 cores="a;pool,b" places="1x2@3,0;3x4@0,0" delays="0;0,0"}' 2>&1 | filecheck %s --check-prefix LATE
// LATE: nest-cores: core 'pool..b': layer b, which reads pool: delay 0, the least is 1 (GROUP-2): leave out delays for the least

// RUN: not cnncc opt %s -p 'nest-cores{arch=tcpa-4x4 cores="a;pool,b" places="1x2@3,0;3x4@0,0"},nest-cores{arch=tcpa-4x4 cores="a;pool,b" places="1x2@3,0;3x4@0,0"}' 2>&1 | filecheck %s --check-prefix AGAIN
// AGAIN: nest-cores: layer 'a' is in a group already

// A GLB of 16 banks of 32 words: what is read and written by two engines each takes banks of its own.
// RUN: not cnncc opt %s -p 'nest-cores{arch="%s.toml" cores="a;pool,b" places="1x2@3,2;3x2@0,0"}' 2>&1 | filecheck %s --check-prefix GLB
// GLB: nest-cores: {{[0-9]+}} words of the GLB in {{[0-9]+}} banks of 32 words, small has 16 (glb.banks, CORE-5), glb.words = 512; the largest are images 256

// RUN: not cnncc opt %s -p 'nest-cores{arch="%s.toml" cores="a;pool,b" places="1x2@3,0;3x4@0,0"}' 2>&1 | filecheck %s --check-prefix BUSES
// BUSES: nest-cores: 2 cores share column 0, small has buses for 1 (cores.buses, CORE-5)
func.func @main(%x: tensor<1x2x8x8xi8>) -> tensor<1x4x4x4xi8> {
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 4, c = 2, h = 8, w = 8, r = 3, s = 3>
       window <kernel = [3, 3], pad = [1, 1, 1, 1]> then <clamp = [0, 127]> label "a" : tensor<1x2x8x8xi8> -> tensor<1x4x8x8xi8> {
    nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
  }
  %1 = nest.layer "max" %0 sizes <n = 1, k = 4, c = 1, h = 4, w = 4, r = 2, s = 2>
       window <kernel = [2, 2], stride = [2, 2], group = 4, fill = -128> then <> label "pool"
       : tensor<1x4x8x8xi8> -> tensor<1x4x4x4xi8> {
    nest.for k { nest.for h { nest.for w { nest.for r { nest.for s { nest.mac } } } } }
  }
  %2 = nest.layer "mac" %1 weights @v sizes <n = 1, k = 4, c = 4, h = 4, w = 4, r = 3, s = 3>
       window <kernel = [3, 3], pad = [1, 1, 1, 1]> then <clamp = [0, 127]> label "b" : tensor<1x4x4x4xi8> -> tensor<1x4x4x4xi8> {
    nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
  }
  func.return %2 : tensor<1x4x4x4xi8>
}
