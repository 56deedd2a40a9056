//! Judgements of records that torch wrote, and of cases that gloo cannot be brought into.

mod bytes;
mod odd;
mod real;
