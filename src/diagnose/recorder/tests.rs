//! Judgements of records that torch wrote, and of cases that cannot be produced with gloo.

mod bytes;
mod odd;
mod real;
