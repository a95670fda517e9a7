//! `engine serve` as its clients see it: the built program on a free port, spoken to over HTTP.

mod answers;
mod client;
mod faults;
mod forms;
mod load;
mod reuse;
