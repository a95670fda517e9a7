// The part of a weight matrix that a kernel is given (`ops::Matrix`). Rows are numbered over the
// whole stack, expert after expert; a part holds some in a row, in the planes of its format.
struct Part {
    first_row: u32,
    rows: u32,
    row_blocks: u32,  // blocks a row
    blocks: u32,      // blocks of the part: where its second plane starts follows from it
}
