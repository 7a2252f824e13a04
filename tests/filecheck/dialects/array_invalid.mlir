// RUN: cnncc opt %s --split-input-file --verify-diagnostics --parsing-diagnostics | filecheck %s

// CHECK: memory is one of dram, glb, host, not rom
array.tensor x, memory rom, words 1

// -----

// CHECK: loop k0 repeats at least once, not 0 times
array.repeat k0, count 0 {
}

// -----

// CHECK: axis is one of lin, k, y, x, not z
array.view w, tensor w.glb, steps [z+k0]

// -----

// CHECK: a max of 2 lanes: only a mac adds up lanes, others have a psum each
array.mac max, lanes 2

// -----

// CHECK: psum: lane = 2: lanes add up (0), or lane l has psum slot + l (1)
array.mac mac, lanes 2, psum 2*lane

// -----

// CHECK: psum: lane = 1, but a commit has no lanes
array.commit y, psum lane

// -----

// CHECK: a load has at most four extents
array.load ifmap, view x, pattern [1, 1, 1, 1, 1]

// -----

// CHECK: an extent is at least 1, not 0
array.commit y, pixels 0

// -----

// CHECK: a place has at least one row and one column, a set too
array.commit y, place rows 0 cols 1

// -----

// CHECK: 'colour' is no field here or is given twice; fields: semaphore, count
array.signal semaphore 1, colour 3

// -----

// CHECK: expected count
array.signal semaphore 1

// -----

// CHECK: 'rows' is given twice
array.mac mac, place rows 2 rows 3

// -----

// CHECK: 'tap' is given twice
array.mac mac, ifmap tap+2*tap

// -----

// CHECK: index is one of row, row_set, col, col_set, not rows
array.mac mac, place y+2*rows

// -----

// CHECK: kind is one of weight, ifmap, not banana
array.load banana, view x

// -----

// CHECK: op is one of mac, max, add, not min
array.mac min

// -----

// CHECK: source is one of psum, glb, not dram
array.commit y, source dram

// -----

// CHECK: direction is one of in, out, not up
array.dma up, dram x, glb y, words 1

// -----

// CHECK: engines is one of dma, load, array, commit, not tea
array.sync [load, tea]

// -----

// All that is wrong is said at once.
// CHECK: layer conv1: view w: there is no tensor nosuch; view w: there is no loop c9; array.load: there is no view x before it; array.mac: a condition names loop k0, which is not around it; array.load: nothing gives semaphore 5 a token; array.commit: there is no semaphore 16: they are 1 to 15
array.layer "conv1" computes "conv1" {
  array.view w, tensor nosuch, steps [lin+9*c9]
  array.repeat k0, count 2 {
    array.load weight, view x, tokens take 5 give 4
  }
  array.mac mac, clear [k0]
  array.commit w, tokens give 16
}

// -----

// CHECK: tensor part is part of whole, which does not exist
array.tensor part, memory glb, words 3, part_of whole

// -----

// A tensor has the words of its shape, which may be none.
// CHECK: tensor x: words, places and steps are not negative
array.tensor x, memory glb, words -3

// -----

// CHECK: tensor x: words, places and steps are not negative
array.tensor x, memory glb, words 3, at -2

// -----

// CHECK: tensor x: offset, image, plane, pitch and column are of 32 bits, as addresses
array.tensor x, memory glb, words 3, part_of whole, column 4294967296

// -----

// CHECK: tensor x: 12 words are not its shape [3, 5]
array.tensor x, memory glb, words 12, shape [3, 5]

// -----

// CHECK: tensor x: 4 words are not its shape [-2, -2]
array.tensor x, memory glb, words 4, shape [-2, -2]

// -----

// What the output units read has a view.
// CHECK: layer l: array.commit to v: it reads params, and names no view of them; array.commit to v: it reads operand, and names no view of them; array.commit to v: it reads residual, and names no view of them
array.tensor x, memory glb, words 3
array.layer "l" computes "" {
  array.view v, tensor x
  array.unit scale
  array.commit v
  array.unit
  array.commit v, source glb
  array.unit factors f
  array.commit v
}

// -----

// CHECK: array.host: there is no tensor y, z
array.tensor x, memory dram, words 3
array.host inputs [x, y], outputs [z] model <"865127f90da2046f">

// -----

// A token may come from another layer.
// CHECK: array.load weight, view w, tokens take 5
array.tensor x, memory glb, words 3
array.layer "first" computes "" {
  array.signal semaphore 5, count 1
}
array.layer "second" computes "" {
  array.view w, tensor x
  array.load weight, view w, tokens take 5
}
