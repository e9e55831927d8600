//! Benchmarks through the library: what is asked, what is written, and what tools are called.

mod ends;
mod files;
mod single;
mod support;
mod tools;
