//! Evaluates an expression from left to right, without backtracking.

mod series;

/// Deeper expressions are rejected.
const MAX_DEPTH: u32 = 64;
/// More adjacent letters are a word.
const MAX_LETTERS: usize = 3;
/// Functions that may be written without a backslash.
const FUNCTIONS: [&str; 21] = [
    "sin", "cos", "tan", "sec", "csc", "cot", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "ln",
    "log", "exp", "abs", "gcd", "lcm", "max", "min", "mod",
];

/// The value of an expression at a point.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Value {
    /// The number; NaN if undefined.
    pub(super) number: f64,
    /// Whether it differs between points.
    pub(super) varies: bool,
}

/// The value of an expression at one of several points. None if it is not an expression.
pub(super) fn value(text: &str, point: u32) -> Option<Value> {
    let mut reader = Reader { rest: text, point, varies: false, depth: 0, bound: None };
    let number = reader.sum()?;
    reader.rest.trim_start().is_empty().then_some(Value { number, varies: reader.varies })
}

struct Reader<'a> {
    rest: &'a str,
    point: u32,
    varies: bool,
    depth: u32,
    /// The variable of a sum or an integral, and its value.
    bound: Option<(char, f64)>,
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
            } else if self.eat("/") || self.eat(":") {
                product = divided(product, self.signed()?);
            } else if self.eat(r"\mod") {
                product = product.rem_euclid(self.signed()?);
            } else if self.peek().is_some_and(begins_factor) {
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
        let mut base = self.atom()?;
        while self.eat("!") {
            base = gamma(base + 1.0);
        }
        if !self.eat("^") {
            return Some(base);
        }
        let exponent = self.exponent()?;
        let mut power = base.powf(exponent);
        while self.eat("!") {
            power = gamma(power + 1.0);
        }
        Some(power)
    }

    /// The exponent of a power: in LaTeX one digit or letter, or a group; otherwise a signed factor.
    fn exponent(&mut self) -> Option<f64> {
        self.nested(Self::signed)
    }

    fn atom(&mut self) -> Option<f64> {
        match self.peek()? {
            '(' => self.group("(", ")"),
            '[' => self.group("[", "]"),
            '{' => self.group("{", "}"),
            '|' => self.group("|", "|").map(f64::abs),
            '⌊' => self.group("⌊", "⌋").map(f64::floor),
            '⌈' => self.group("⌈", "⌉").map(f64::ceil),
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

    /// A number, followed by a fraction if it is a mixed number.
    fn mixed(&mut self) -> Option<f64> {
        let whole = self.number()?;
        let is_whole = whole.fract() == 0.0;
        if is_whole && self.rest.trim_start().starts_with(r"\frac") {
            let before = self.varies;
            self.varies = false;
            self.eat(r"\frac");
            let fraction = self.fraction()?;
            // Before a fraction with variables, a number is a factor.
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
        let (number, rest) = self.rest.split_at(end);
        self.rest = rest;
        // The base of a number is ignored.
        if rest.starts_with('_') {
            self.subscript()?;
        }
        number.parse().ok()
    }

    /// The argument of a command: a group in braces, or one digit or letter.
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
                self.letter(c, "")
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
            "binom" => {
                let (all, chosen) = (self.nested(Self::argument)?, self.nested(Self::argument)?);
                Some(gamma(all + 1.0) / gamma(chosen + 1.0) / gamma(all - chosen + 1.0))
            }
            "sum" => self.series(0.0, |sum, term| sum + term),
            "prod" => self.series(1.0, |product, term| product * term),
            "int" => self.integral(),
            name => self.function(name),
        }
    }

    /// The text of an index, such as the `1` of `x_1`.
    fn subscript(&mut self) -> Option<&str> {
        let rest = self.rest.strip_prefix('_')?;
        let (index, rest) = match rest.strip_prefix('{') {
            Some(inner) => inner.split_once('}')?,
            None => rest.split_at(rest.chars().next()?.len_utf8()),
        };
        self.rest = rest;
        Some(index)
    }

    fn word(&mut self) -> Option<f64> {
        let end = self.rest.find(|c: char| !c.is_alphabetic()).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        let mut letters = word.chars();
        let first = letters.next()?;
        if letters.next().is_none() {
            return self.indexed(first);
        }
        match word {
            "sqrt" => return self.nested(Self::argument).map(f64::sqrt),
            "pi" => return Some(std::f64::consts::PI),
            _ if FUNCTIONS.contains(&word) => return self.function(word),
            _ => {}
        }
        // Adjacent letters are multiplied, unless they are a word. The last one may have an index.
        if word.chars().count() > MAX_LETTERS {
            return None;
        }
        let last = word.chars().next_back()?;
        let product = word[..word.len() - last.len_utf8()].chars();
        let product: Option<f64> = product.map(|letter| self.letter(letter, "")).product();
        Some(product? * self.indexed(last)?)
    }

    /// A letter with its index, if it has one.
    fn indexed(&mut self, letter: char) -> Option<f64> {
        let index = if self.rest.starts_with('_') { self.subscript()?.to_owned() } else { String::new() };
        self.letter(letter, &index)
    }

    fn function(&mut self, name: &str) -> Option<f64> {
        if ["gcd", "lcm", "max", "min"].contains(&name) {
            return self.of_many(name);
        }
        let base = match name {
            "log" if self.rest.starts_with('_') => {
                let index = self.subscript()?.to_owned();
                Some(self.nested(|reader| value(&index, reader.point))?.number)
            }
            _ => None,
        };
        let function: fn(f64) -> f64 = match name {
            "sin" => f64::sin,
            "cos" => f64::cos,
            "tan" => f64::tan,
            "sec" => |angle| 1.0 / angle.cos(),
            "csc" => |angle| 1.0 / angle.sin(),
            "cot" => |angle| 1.0 / angle.tan(),
            "arcsin" => f64::asin,
            "arccos" => f64::acos,
            "arctan" => f64::atan,
            "sinh" => f64::sinh,
            "cosh" => f64::cosh,
            "tanh" => f64::tanh,
            "ln" => f64::ln,
            "log" if base.is_some() => f64::ln,
            "log" => f64::log10,
            "exp" => f64::exp,
            "abs" => f64::abs,
            _ => return None,
        };
        // The power of a function comes before its argument.
        let power = if self.eat("^") { Some(self.nested(Self::argument)?) } else { None };
        let result = self.nested(Self::power).map(function)?;
        let result = base.map_or(result, |base| divided(result, base.ln()));
        Some(power.map_or(result, |power| result.powf(power)))
    }

    /// A function of several numbers in brackets.
    fn of_many(&mut self, name: &str) -> Option<f64> {
        self.eat("(").then_some(())?;
        let mut numbers = vec![self.nested(Self::sum)?];
        while self.eat(",") {
            numbers.push(self.nested(Self::sum)?);
        }
        self.eat(")").then_some(())?;
        let both: fn(f64, f64) -> f64 = match name {
            "max" => f64::max,
            "min" => f64::min,
            "gcd" => gcd,
            _ => |one, other| divided((one * other).abs(), gcd(one, other)),
        };
        numbers.into_iter().reduce(both)
    }

    fn letter(&mut self, letter: char, index: &str) -> Option<f64> {
        match letter {
            letter if index.is_empty() && self.bound.is_some_and(|(bound, _)| bound == letter) => {
                self.bound.map(|(_, number)| number)
            }
            'π' if index.is_empty() => Some(std::f64::consts::PI),
            'e' if index.is_empty() => Some(std::f64::consts::E),
            letter if letter.is_alphabetic() => {
                self.varies = true;
                let number = index
                    .bytes()
                    .fold(u32::from(letter), |number, byte| number * 31 % 65_521 + u32::from(byte));
                // Multiples of an irrational number are spread evenly, and differ for each letter.
                let place = f64::from(number) * 0.618_033_988_749_894_9
                    + f64::from(self.point) * std::f64::consts::SQRT_2;
                Some(0.3 + 2.4 * place.fract())
            }
            _ => None,
        }
    }
}

/// A quotient. Division by zero is NaN, not infinite.
fn divided(above: f64, below: f64) -> f64 {
    if below == 0.0 { f64::NAN } else { above / below }
}

/// Whether a factor may start with this character without a multiplication sign.
fn begins_factor(c: char) -> bool {
    c.is_alphabetic() || matches!(c, '(' | '{' | '\\' | '∞' | '⌊' | '⌈')
}

/// The gamma function: the factorial of the number minus one.
fn gamma(number: f64) -> f64 {
    // Whole numbers must give exact results.
    if number.fract() == 0.0 && (1.0..171.0).contains(&number) {
        return (1..number as u32).map(f64::from).product();
    }
    if number < 0.5 {
        return std::f64::consts::PI / ((std::f64::consts::PI * number).sin() * gamma(1.0 - number));
    }
    // Lanczos approximation, to fifteen digits.
    const G: f64 = 7.0;
    const COEFFICIENTS: [f64; 9] = [
        0.999_999_999_999_809_9,
        676.520_368_121_885_1,
        -1_259.139_216_722_402_8,
        771.323_428_777_653_1,
        -176.615_029_162_140_6,
        12.507_343_278_686_905,
        -0.138_571_095_265_720_12,
        9.984_369_578_019_572e-6,
        1.505_632_735_149_311_6e-7,
    ];
    let number = number - 1.0;
    let terms = COEFFICIENTS[1..].iter().zip(1..).map(|(term, at)| term / (number + f64::from(at)));
    let sum = COEFFICIENTS[0] + terms.sum::<f64>();
    let base = number + G + 0.5;
    (2.0 * std::f64::consts::PI).sqrt() * base.powf(number + 0.5) * (-base).exp() * sum
}

fn gcd(one: f64, other: f64) -> f64 {
    let (mut one, mut other) = (one.abs(), other.abs());
    if one.fract() != 0.0 || other.fract() != 0.0 || !one.is_finite() || !other.is_finite() {
        return f64::NAN;
    }
    while other > 0.0 {
        (one, other) = (other, one % other);
    }
    one
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
            ("3!", 6.0),
            ("5!/3!", 20.0),
            ("2^3!", 64.0),
            ("|-3|+1", 4.0),
            ("⌊3.7⌋", 3.0),
            (r"\binom{5}{2}", 10.0),
            (r"\log_2 8", 3.0),
            (r"\sin^2 0", 0.0),
            (r"\gcd(12,18)", 6.0),
            (r"\max(3,5,4)", 5.0),
            (r"7\mod 3", 1.0),
            ("1:2", 0.5),
            ("1011_{2}", 1011.0),
        ] {
            assert_eq!(value(text, 0), Some(Value { number: expected, varies: false }), "{text}");
        }
    }

    #[test]
    fn other_texts_have_no_value() {
        for text in [
            "",
            "1 2",
            "1+",
            "(1",
            "1)",
            "hello",
            r"\alpha",
            "1=1",
            "1,2",
            r"\frac{1}",
            "é€",
            ".",
            "|1",
            "3!x!!y!(",
            "x_{1",
        ] {
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
        fn no_text_makes_the_parser_panic(text in r"(\\frac|\\sqrt|sin|[0-9a-c+*/^(){}\[\].%e π-]|é){0,60}") {
            let _ = value(&text, 0);
        }
    }
}
