//! Settings in files: each is declared once, with its name, type, default, documentation and check.
//!
//! A file of any format becomes one [tree] of values with positions. A declaration, made with
//! [`settings!`](crate::settings!), reads typed values from the tree, and collects all problems, which are
//! reported together as [`Problems`]. The JSON Schema, the recorded form and the tables in docs/ come from the
//! same declaration.
//!
//! Suggested reading order: [tree], [yaml] and [toml_file] parse files; [reader] and [section] read values;
//! [form] and [forms] describe one setting; [declare] combines them into a section; [docs] writes tables.
#![deny(clippy::print_stdout, clippy::print_stderr, clippy::exit)]

pub mod declare;
pub mod diagnostic;
pub mod docs;
mod document;
mod env_file;
pub mod expand;
mod expanded;
pub mod forms;
mod json;
mod overrides;
pub mod toml_file;
pub mod tree;
pub mod yaml;
mod yaml_syntax;

pub use declare::{Key, Settings, form, object, reader, record, section, titled};
pub use diagnostic::{Code, Diagnostic, Problems, Severity};
pub use document::Document;
pub use env_file::env_lines;
pub use expand::{Env, EnvValue, ExpandError, Expanded, env_value, expand};
pub use form::{Form, Written};
pub use overrides::{Override, OverrideError};
pub use reader::{Reader, Vars, read_json, read_text};
pub use section::Section;
pub use tree::{Entry, Node, SourceFiles, Span, Value};
