//! `engine serve` as its clients see it: the built program on a free port, spoken to over HTTP.

mod answers;
mod asking;
mod client;
mod clients;
mod dialects;
mod faults;
mod forms;
mod load;
mod page;
mod reuse;
mod sessions;
