//! The value of an expression, read from left to right without going back.

/// Deeper expressions are not read.
const MAX_DEPTH: u32 = 64;

/// What an expression is at a point.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Value {
    /// Its number; NaN where it has none.
    pub(super) number: f64,
    /// Whether it is another one at other points.
    pub(super) varies: bool,
}

/// The value of an expression at one of several points. None if it is no expression.
pub(super) fn value(text: &str, point: u32) -> Option<Value> {
    let mut reader = Reader { rest: text, point, varies: false, depth: 0 };
    let number = reader.sum()?;
    reader.rest.trim_start().is_empty().then_some(Value { number, varies: reader.varies })
}

struct Reader<'a> {
    rest: &'a str,
    point: u32,
    varies: bool,
    depth: u32,
}

impl Reader<'_> {
    fn peek(&mut self) -> Option<char> {
        self.rest = self.rest.trim_start();
        self.rest.chars().next()
    }

    fn eat(&mut self, wanted: &str) -> bool {
        self.rest = self.rest.trim_start();
        let rest = self.rest.strip_prefix(wanted);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn nested<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        if self.depth == MAX_DEPTH {
            return None;
        }
        self.depth += 1;
        let value = read(self);
        self.depth -= 1;
        value
    }

    fn sum(&mut self) -> Option<f64> {
        let mut sum = self.product()?;
        loop {
            if self.eat("+") {
                sum += self.product()?;
            } else if self.eat("-") {
                sum -= self.product()?;
            } else {
                return Some(sum);
            }
        }
    }

    fn product(&mut self) -> Option<f64> {
        let mut product = self.signed()?;
        loop {
            if self.eat("*") {
                product *= self.signed()?;
            } else if self.eat("/") {
                product = divided(product, self.signed()?);
            } else if self.peek().is_some_and(|c| c.is_alphabetic() || matches!(c, '(' | '{' | '\\' | '∞'))
            {
                product *= self.power()?;
            } else {
                return Some(product);
            }
        }
    }

    fn signed(&mut self) -> Option<f64> {
        if self.eat("-") {
            return self.nested(Self::signed).map(|number| -number);
        }
        if self.eat("+") {
            return self.nested(Self::signed);
        }
        self.power()
    }

    fn power(&mut self) -> Option<f64> {
        let base = self.atom()?;
        if !self.eat("^") {
            return Some(base);
        }
        let exponent = self.nested(Self::signed)?;
        Some(base.powf(exponent))
    }

    fn atom(&mut self) -> Option<f64> {
        match self.peek()? {
            '(' => self.group("(", ")"),
            '{' => self.group("{", "}"),
            c if c.is_ascii_digit() || c == '.' => self.mixed(),
            '\\' => self.command(),
            '∞' => {
                self.eat("∞");
                Some(f64::INFINITY)
            }
            c if c.is_alphabetic() => self.word(),
            _ => None,
        }
    }

    fn group(&mut self, open: &str, close: &str) -> Option<f64> {
        let inner = self.eat(open).then(|| self.nested(Self::sum))??;
        self.eat(close).then_some(inner)
    }

    /// A number, with a fraction behind it if it is a mixed one.
    fn mixed(&mut self) -> Option<f64> {
        let whole = self.number()?;
        let is_whole = whole.fract() == 0.0;
        if is_whole && self.rest.trim_start().starts_with(r"\frac") {
            let before = self.varies;
            self.varies = false;
            self.eat(r"\frac");
            let fraction = self.fraction()?;
            // Beside a fraction of variables a number multiplies.
            let mixed = if self.varies { whole * fraction } else { whole + fraction };
            self.varies |= before;
            return Some(mixed);
        }
        if is_whole && self.rest.starts_with(' ') && self.peek().is_some_and(|c| c.is_ascii_digit()) {
            let above = self.number()?;
            let below = self.eat("/").then(|| self.number())??;
            return Some(whole + divided(above, below));
        }
        Some(whole)
    }

    fn number(&mut self) -> Option<f64> {
        self.peek()?;
        let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
        let mut end = digits(self.rest);
        if self.rest[end..].starts_with('.') {
            end += 1 + digits(&self.rest[end + 1..]);
        }
        if let Some(exponent) = self.rest[end..].strip_prefix(['e', 'E']) {
            let sign = usize::from(exponent.starts_with(['-', '+']));
            let length = digits(&exponent[sign..]);
            end += if length > 0 { 1 + sign + length } else { 0 };
        }
        let (number, rest) = self.rest.split_at(end);
        self.rest = rest;
        number.parse().ok()
    }

    /// What a command is about: something in braces, or one digit or letter.
    fn argument(&mut self) -> Option<f64> {
        match self.peek()? {
            '{' => self.group("{", "}"),
            '(' => self.group("(", ")"),
            c if c.is_ascii_digit() => {
                self.rest = &self.rest[1..];
                c.to_digit(10).map(f64::from)
            }
            '\\' => self.nested(Self::command),
            c => {
                self.rest = &self.rest[c.len_utf8()..];
                self.letter(c)
            }
        }
    }

    fn fraction(&mut self) -> Option<f64> {
        let above = self.nested(Self::argument)?;
        let below = self.nested(Self::argument)?;
        Some(divided(above, below))
    }

    fn command(&mut self) -> Option<f64> {
        self.rest = self.rest.strip_prefix('\\')?;
        let end = self.rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at(end);
        self.rest = rest;
        match name {
            "frac" => self.fraction(),
            "sqrt" if self.peek() == Some('[') => {
                let degree = self.group("[", "]")?;
                self.nested(Self::argument).map(|number| number.powf(1.0 / degree))
            }
            "sqrt" => self.nested(Self::argument).map(f64::sqrt),
            name => self.function(name),
        }
    }

    fn word(&mut self) -> Option<f64> {
        let end = self.rest.find(|c: char| !c.is_alphabetic()).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        let mut letters = word.chars();
        let first = letters.next()?;
        if letters.next().is_none() {
            return self.letter(first);
        }
        if let Some(rest) = word.strip_prefix('π') {
            // The sign grows together with letters that it multiplies.
            let factor = one(rest).and_then(|letter| self.letter(letter))?;
            return Some(std::f64::consts::PI * factor);
        }
        if word == "sqrt" { self.nested(Self::argument).map(f64::sqrt) } else { self.function(word) }
    }

    fn function(&mut self, name: &str) -> Option<f64> {
        let function = match name {
            "sin" => f64::sin,
            "cos" => f64::cos,
            "tan" => f64::tan,
            "ln" => f64::ln,
            "log" => f64::log10,
            "exp" => f64::exp,
            _ => return None,
        };
        self.nested(Self::power).map(function)
    }

    fn letter(&mut self, letter: char) -> Option<f64> {
        match letter {
            'π' => Some(std::f64::consts::PI),
            'e' => Some(std::f64::consts::E),
            letter if letter.is_alphabetic() => {
                self.varies = true;
                // Multiples of an irrational number are spread evenly, and no two letters share one.
                let place = f64::from(u32::from(letter)) * 0.618_033_988_749_894_9
                    + f64::from(self.point) * std::f64::consts::SQRT_2;
                Some(0.3 + 2.4 * place.fract())
            }
            _ => None,
        }
    }
}

/// A quotient, which by nothing is not a number rather than infinite.
fn divided(above: f64, below: f64) -> f64 {
    if below == 0.0 { f64::NAN } else { above / below }
}

fn one(text: &str) -> Option<char> {
    let mut chars = text.chars();
    chars.next().filter(|_| chars.next().is_none())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn arithmetic_has_its_usual_order() {
        for (text, expected) in [
            ("1+2*3", 7.0),
            ("2*3^2", 18.0),
            ("-2^2", -4.0),
            ("2^3^2", 512.0),
            ("8/2/2", 2.0),
            ("2(3+4)", 14.0),
            ("2--1", 3.0),
            ("1-2-3", -4.0),
            (".5", 0.5),
            ("3.", 3.0),
            (r"\frac{1+1}{4}", 0.5),
            (r"\sqrt{16}", 4.0),
            ("sqrt(16)", 4.0),
            ("ln(e)", 1.0),
            (r"\log 100", 2.0),
            (r"2\frac{1}{2}", 2.5),
        ] {
            assert_eq!(value(text, 0), Some(Value { number: expected, varies: false }), "{text}");
        }
    }

    #[test]
    fn what_is_no_expression_has_no_value() {
        for text in
            ["", "1 2", "1+", "(1", "1)", "ab", "hello", r"\alpha", "1=1", "1,2", r"\frac{1}", "é€", "."]
        {
            assert_eq!(value(text, 0), None, "{text}");
        }
    }

    #[test]
    fn variables_have_values_of_their_own_at_each_point() {
        let at = |text, point| value(text, point).unwrap();
        assert!(at("x", 0).varies && at("x", 0) != at("y", 0) && at("x", 0) != at("x", 1));
        assert!(!at("π", 0).varies && !at("e", 0).varies);
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in r"(\\frac|\\sqrt|sin|[0-9a-c+*/^(){}\[\].%e π-]|é){0,60}") {
            let _ = value(&text, 0);
        }
    }
}
