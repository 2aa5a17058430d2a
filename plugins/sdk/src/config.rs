//! Reads a policy's configuration: one flat JSON object of numbers, texts and flags.
//!
//! A full JSON reader would outweigh most policies, so this one takes what configurations need and refuses the rest by name:
//! no nesting, no lists. A number is read exactly if it has at most 15 digits and lies within 1e-22 and 1e22 or is 0 (then
//! mantissa and power of ten are both exact in an f64 and one operation rounds once); others are refused.

/// The fields of a configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    fields: Vec<(String, Value)>,
}

/// A value in a configuration.
#[derive(Debug, Clone, PartialEq)]
enum Value {
    Number(f64),
    Text(String),
    Flag(bool),
}

impl Config {
    /// Reads `json`; empty bytes mean an empty object.
    ///
    /// Errors: not a flat JSON object; a field that is not among `known`, which the message lists; a field named twice.
    pub fn parse(json: &[u8], known: &[&str]) -> Result<Config, String> {
        let mut config = Config { fields: Vec::new() };
        let mut reader = Reader { rest: json };
        reader.space();
        if reader.rest.is_empty() {
            return Ok(config);
        }
        reader.expect(b'{')?;
        if !reader.take(b'}') {
            loop {
                let name = reader.text()?;
                if !known.contains(&name.as_str()) {
                    return Err(unknown(&name, known));
                }
                if config.fields.iter().any(|(field, _)| *field == name) {
                    return Err(["configuration: field \"", &name, "\" is given twice"].concat());
                }
                reader.expect(b':')?;
                let value = reader.value()?;
                config.fields.push((name, value));
                if reader.take(b'}') {
                    break;
                }
                reader.expect(b',')?;
            }
        }
        if reader.rest.is_empty() { Ok(config) } else { Err(reader.broken("nothing more")) }
    }

    /// The number under `name`, or `default` where the configuration has none.
    pub fn number(&self, name: &str, default: f64) -> Result<f64, String> {
        match self.value(name) {
            None => Ok(default),
            Some(Value::Number(number)) => Ok(*number),
            Some(_) => Err(["configuration: field \"", name, "\" must be a number"].concat()),
        }
    }

    /// The number under `name` or `default`, held to `low` ..= `high`. `range` says the same in words for the message.
    pub fn number_within(&self, name: &str, default: f64, low: f64, high: f64, range: &str) -> Result<f64, String> {
        let number = self.number(name, default)?;
        if number >= low && number <= high {
            Ok(number)
        } else {
            Err(["configuration: field \"", name, "\" must be ", range].concat())
        }
    }

    /// The text under `name`, or `default` where the configuration has none.
    pub fn text<'a>(&'a self, name: &str, default: &'a str) -> Result<&'a str, String> {
        match self.value(name) {
            None => Ok(default),
            Some(Value::Text(text)) => Ok(text),
            Some(_) => Err(["configuration: field \"", name, "\" must be a text"].concat()),
        }
    }

    /// The flag under `name`, or `default` where the configuration has none.
    pub fn flag(&self, name: &str, default: bool) -> Result<bool, String> {
        match self.value(name) {
            None => Ok(default),
            Some(Value::Flag(flag)) => Ok(*flag),
            Some(_) => Err(["configuration: field \"", name, "\" must be true or false"].concat()),
        }
    }

    /// Whether the configuration has a field `name`.
    pub fn has(&self, name: &str) -> bool {
        self.value(name).is_some()
    }

    fn value(&self, name: &str) -> Option<&Value> {
        self.fields.iter().find(|(field, _)| field == name).map(|(_, value)| value)
    }
}

fn unknown(name: &str, known: &[&str]) -> String {
    if known.is_empty() {
        return ["configuration: unknown field \"", name, "\"; this policy takes none"].concat();
    }
    ["configuration: unknown field \"", name, "\"; known are ", &known.join(", ")].concat()
}

/// What is still to be read.
struct Reader<'a> {
    rest: &'a [u8],
}

impl Reader<'_> {
    fn space(&mut self) {
        while let [b' ' | b'\t' | b'\n' | b'\r', rest @ ..] = self.rest {
            self.rest = rest;
        }
    }

    /// Takes `byte` and the space after it, if it is next.
    fn take(&mut self, byte: u8) -> bool {
        match self.rest {
            [first, rest @ ..] if *first == byte => {
                self.rest = rest;
                self.space();
                true
            }
            _ => false,
        }
    }

    fn expect(&mut self, byte: u8) -> Result<(), String> {
        if self.take(byte) { Ok(()) } else { Err(self.broken(core::str::from_utf8(&[byte]).unwrap_or("?"))) }
    }

    fn broken(&self, wanted: &str) -> String {
        let shown = String::from_utf8_lossy(&self.rest[..self.rest.len().min(20)]);
        let found = if shown.is_empty() { "the end" } else { &shown };
        ["configuration is not a flat JSON object: expected ", wanted, ", found ", found].concat()
    }

    /// A text without escapes other than `\"` and `\\`.
    fn text(&mut self) -> Result<String, String> {
        let Some((b'"', rest)) = self.rest.split_first() else {
            return Err(self.broken("a text in quotes"));
        };
        let mut bytes = Vec::new();
        let mut index = 0;
        loop {
            match (rest.get(index), rest.get(index + 1)) {
                (Some(b'"'), _) => break,
                (Some(b'\\'), Some(byte @ (b'"' | b'\\'))) => {
                    bytes.push(*byte);
                    index += 2;
                }
                (Some(byte), _) if *byte != b'\\' && *byte >= 0x20 => {
                    bytes.push(*byte);
                    index += 1;
                }
                _ => return Err(self.broken("a text in quotes without control characters")),
            }
        }
        self.rest = &rest[index + 1..];
        self.space();
        String::from_utf8(bytes).map_err(|_| "configuration is not UTF-8".into())
    }

    fn value(&mut self) -> Result<Value, String> {
        match self.rest {
            [b'"', ..] => self.text().map(Value::Text),
            [b't', b'r', b'u', b'e', rest @ ..] => {
                self.rest = rest;
                self.space();
                Ok(Value::Flag(true))
            }
            [b'f', b'a', b'l', b's', b'e', rest @ ..] => {
                self.rest = rest;
                self.space();
                Ok(Value::Flag(false))
            }
            _ => self.number().map(Value::Number),
        }
    }

    /// Digits from here on, added to `mantissa`; how many there were.
    fn digits(&mut self, mantissa: &mut u64) -> i32 {
        let mut count = 0;
        while let [digit @ b'0'..=b'9', rest @ ..] = self.rest {
            *mantissa = mantissa.saturating_mul(10).saturating_add(u64::from(digit - b'0'));
            self.rest = rest;
            count += 1;
        }
        count
    }

    fn number(&mut self) -> Result<f64, String> {
        let start = Reader { rest: self.rest };
        let negative = match self.rest {
            [b'-', rest @ ..] => {
                self.rest = rest;
                true
            }
            _ => false,
        };
        let mut mantissa = 0;
        let mut power = 0;
        if self.digits(&mut mantissa) == 0 {
            return Err(start.broken("a number, a text, true or false"));
        }
        if let [b'.', rest @ ..] = self.rest {
            self.rest = rest;
            power = -self.digits(&mut mantissa);
            if power == 0 {
                return Err(start.broken("digits after the point"));
            }
        }
        if let [b'e' | b'E', rest @ ..] = self.rest {
            self.rest = rest;
            let sign = match self.rest {
                [b'-', rest @ ..] => {
                    self.rest = rest;
                    -1
                }
                [b'+', rest @ ..] => {
                    self.rest = rest;
                    1
                }
                _ => 1,
            };
            let mut exponent = 0;
            if self.digits(&mut exponent) == 0 {
                return Err(start.broken("digits after e"));
            }
            power += sign * exponent.min(1_000) as i32;
        }
        self.space();
        if mantissa > 999_999_999_999_999 || (mantissa > 0 && !(-22..=22).contains(&power)) {
            return Err(start.broken("a number of at most 15 digits within 1e-22 and 1e22"));
        }
        let mut scale = 1.0_f64;
        for _ in 0..power.unsigned_abs().min(22) {
            scale *= 10.0;
        }
        let size = if power < 0 { mantissa as f64 / scale } else { mantissa as f64 * scale };
        Ok(if negative { -size } else { size })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_exactly() {
        for text in ["0", "-0", "0.7", "0.9", "10", "1e-3", "1.25E+2", "-3.5", "123456789012345", "1e22", "0.000001"] {
            let json = ["{\"x\": ", text, "}"].concat();
            let config = Config::parse(json.as_bytes(), &["x"]).expect(text);
            let expected: f64 = text.parse().expect(text);
            assert_eq!(config.number("x", 9.0).map(f64::to_bits), Ok(expected.to_bits()), "{text}");
        }
    }

    #[test]
    fn texts_and_flags_are_read() {
        let config = Config::parse(br#" { "a" : "x\"y" , "b":true, "c" : false } "#, &["a", "b", "c"]).expect("valid");
        assert_eq!(config.text("a", ""), Ok("x\"y"));
        assert_eq!(config.flag("b", false), Ok(true));
        assert_eq!(config.flag("c", true), Ok(false));
        assert_eq!(config.flag("d", true), Ok(true));
        assert_eq!(config.number("a", 1.0), Err("configuration: field \"a\" must be a number".into()));
    }

    #[test]
    fn nothing_and_an_empty_object_mean_the_defaults() {
        for json in ["", "  ", "{}", " { } "] {
            assert_eq!(Config::parse(json.as_bytes(), &[]).expect(json).number("eta", 0.7), Ok(0.7));
        }
    }

    #[test]
    fn an_unknown_field_is_refused_with_the_known_ones() {
        let error = Config::parse(br#"{"etta": 1}"#, &["eta", "momentum"]).expect_err("misspelt");
        assert_eq!(error, "configuration: unknown field \"etta\"; known are eta, momentum");
    }

    #[test]
    fn broken_json_is_refused() {
        for json in [
            "{",
            "[]",
            "{\"x\"}",
            "{\"x\":}",
            "{\"x\":1",
            "{\"x\":1,}",
            "{\"x\":1}2",
            "{\"x\":1.}",
            "{\"x\":1e}",
            "{\"x\":--1}",
            "{\"x\":null}",
            "{\"x\":[1]}",
            "{\"x\":1,\"x\":2}",
            "{\"x\":1e400}",
            "{\"x\":1234567890123456}",
            "{\"x\":\"a",
            "nonsense",
        ] {
            assert!(Config::parse(json.as_bytes(), &["x"]).is_err(), "{json}");
        }
    }
}
