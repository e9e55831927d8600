//! Answers with several parts: lists, points, sets, unions, matrices, and values with `±`.

use std::borrow::Cow;

/// The parts of an answer.
pub(super) struct List<'a> {
    /// How they are joined, and whether their order matters.
    pub(super) order: Order,
    /// The parts.
    pub(super) items: Vec<Cow<'a, str>>,
}

/// How parts are joined.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Order {
    /// With commas only.
    Bare,
    /// As a set.
    Set,
    /// In these brackets, like points and intervals.
    Brackets(char, char),
    /// In this many rows.
    Rows(usize),
    /// By union signs.
    Union,
}

impl Order {
    /// Whether the parts are compared in order.
    pub(super) fn is_fixed(self) -> bool {
        matches!(self, Self::Brackets(..) | Self::Rows(_))
    }
}

impl<'a> List<'a> {
    /// None if the text is a single answer.
    pub(super) fn read(text: &'a str) -> Option<Self> {
        if let Some(rows) = matrix(text) {
            let count = rows.split(r"\\").count();
            let cells = rows.split(r"\\").flat_map(|row| row.split('&'));
            let items = cells.map(|cell| cell.trim().into()).collect();
            return Some(Self { order: Order::Rows(count), items });
        }
        let union: Vec<_> = split(text, '∪').map(Cow::from).collect();
        if union.len() > 1 {
            return Some(Self { order: Order::Union, items: union });
        }
        let (inner, order) = match (text.chars().next()?, text.chars().next_back()?) {
            (open @ ('(' | '['), close @ (')' | ']')) if encloses(text) => {
                (inside(text), Order::Brackets(open, close))
            }
            ('⦃', '⦄') if encloses(text) => (inside(text), Order::Set),
            _ => (text, Order::Bare),
        };
        let mut items = Vec::new();
        for item in split(inner, ',').map(str::trim) {
            match item.contains('±') {
                true => items.extend(["+", "-"].map(|sign| item.replace('±', sign).into())),
                false => items.push(item.into()),
            }
        }
        (items.len() > 1 || order == Order::Set).then_some(Self { order, items })
    }
}

/// The content of a matrix or a column.
fn matrix(text: &str) -> Option<&str> {
    const KINDS: [&str; 4] = ["pmatrix", "bmatrix", "matrix", "vmatrix"];
    let rest = text.strip_prefix(r"\begin{")?;
    let kind =
        KINDS.iter().find(|kind| rest.strip_prefix(**kind).is_some_and(|rest| rest.starts_with('}')))?;
    let inner = &rest[kind.len() + 1..];
    inner.strip_suffix('}')?.strip_suffix(kind)?.strip_suffix(r"\end{")
}

fn inside(text: &str) -> &str {
    let mut chars = text.chars();
    chars.next();
    chars.next_back();
    chars.as_str()
}

fn depth_change(c: char) -> i32 {
    match c {
        '(' | '[' | '{' | '⦃' => 1,
        ')' | ']' | '}' | '⦄' => -1,
        _ => 0,
    }
}

/// Whether the first bracket of a text is closed by its last.
fn encloses(text: &str) -> bool {
    let mut depth = 0;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        depth += depth_change(c);
        if depth <= 0 {
            return depth == 0 && chars.peek().is_none();
        }
    }
    false
}

/// The parts of a text between signs outside of brackets.
fn split(text: &str, sign: char) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    text.split(move |c| {
        depth += depth_change(c);
        c == sign && depth == 0
    })
}
