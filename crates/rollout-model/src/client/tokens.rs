//! The tokens of a response, under all the names that servers use for them.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{base85, lenient::Number};
use rollout_core::{
    lenient_base64,
    response::{ResponseTokens, RoutedExperts},
};

/// The probabilities of a completion's tokens.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Logprobs {
    pub(super) content: Option<Vec<Logprob>>,
}

/// The probability of one token.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Logprob {
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    logprob: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<Vec<u8>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_logprobs: Option<Vec<Value>>,
}

/// The token fields of a response.
#[derive(Debug, Default)]
pub(super) struct TokenFields {
    pub(super) prompt: Option<Vec<Number>>,
    pub(super) completion: Option<Vec<Number>>,
    pub(super) routed_experts: Option<Value>,
}

impl TokenFields {
    /// The tokens, if they are complete: prompt, completion, and one probability per token of the completion.
    pub(super) fn with(self, logprobs: Option<&Logprobs>) -> Option<ResponseTokens> {
        let entries = logprobs?.content.as_ref()?;
        let prompt_ids = ids(self.prompt?)?;
        let completion_ids = match self.completion {
            Some(completion) => ids(completion)?,
            None => entries.iter().map(Logprob::id).collect::<Option<Vec<u32>>>()?,
        };
        let completion_logprobs = entries.iter().map(|entry| entry.logprob).collect::<Option<Vec<f64>>>()?;
        if completion_ids.len() != completion_logprobs.len() {
            return None;
        }
        let most = prompt_ids.len() + completion_ids.len();
        let routed_experts = self.routed_experts.and_then(|experts| routed_experts(experts, most));
        Some(ResponseTokens { prompt_ids, completion_ids, completion_logprobs, routed_experts })
    }
}

impl Logprob {
    /// The token's id, from servers that write `token_id:123` instead of its text.
    fn id(&self) -> Option<u32> {
        self.token.as_deref()?.strip_prefix("token_id:")?.parse().ok()
    }
}

fn ids(numbers: Vec<Number>) -> Option<Vec<u32>> {
    numbers.into_iter().map(Number::id).collect()
}

/// The experts of each token and layer. Servers write nested lists; or base64 of a NumPy file; or base64 or base85 of
/// bare numbers with their `shape` and type, starting at some token. Other forms are logged and ignored.
fn routed_experts(value: Value, most_tokens: usize) -> Option<RoutedExperts> {
    let is_present = !value.is_null();
    let experts = read_experts(value, most_tokens);
    if is_present && experts.is_none() {
        tracing::warn!("ignored `routed_experts` of the server: unknown format");
    }
    experts
}

fn read_experts(value: Value, most_tokens: usize) -> Option<RoutedExperts> {
    match value {
        Value::Array(_) => serde_json::from_value(value).ok(),
        Value::String(text) => {
            let bytes = lenient_base64::decode(&text)?;
            let (array, data) = Array::of_npy(&bytes)?;
            array.experts(data)
        }
        Value::Object(_) => {
            #[derive(Deserialize)]
            struct Wire {
                data: String,
                shape: [usize; 3],
                #[serde(default)]
                start: usize,
                dtype: Option<String>,
            }
            let wire: Wire = serde_json::from_value(value).ok()?;
            let width = match wire.dtype.as_deref() {
                Some("uint8" | "int8") => Some(1),
                Some("uint16" | "int16") => Some(2),
                Some("uint32" | "int32") => Some(4),
                Some(_) => return None,
                None => None,
            };
            if wire.start > most_tokens {
                return None;
            }
            // Without a type, base64 encodes bytes and base85 encodes numbers of four bytes. The shape decides: the two
            // encodings of a text differ in length.
            let of = |bytes: Option<Vec<u8>>, usual: usize| {
                Array { shape: wire.shape, width: width.unwrap_or(usual) }.experts(&bytes?)
            };
            let known =
                of(lenient_base64::decode(&wire.data), 1).or_else(|| of(base85::decode(&wire.data), 4))?;
            let mut experts = vec![Vec::new(); wire.start];
            experts.extend(known);
            Some(experts)
        }
        _ => None,
    }
}

/// Unsigned little-endian numbers in three dimensions: tokens, layers, experts.
struct Array {
    shape: [usize; 3],
    width: usize,
}

impl Array {
    /// Reads the array of a NumPy file, and returns the bytes of its numbers.
    fn of_npy(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let rest = bytes.strip_prefix(b"\x93NUMPY")?;
        let (length, rest) = match rest {
            [1, _, a, b, rest @ ..] => (usize::from(u16::from_le_bytes([*a, *b])), rest),
            [2 | 3, _, a, b, c, d, rest @ ..] => {
                (usize::try_from(u32::from_le_bytes([*a, *b, *c, *d])).ok()?, rest)
            }
            _ => return None,
        };
        let (header, data) = rest.split_at_checked(length)?;
        let header = std::str::from_utf8(header).ok()?;
        let after = |key: &str| Some(header.split_once(key)?.1.trim_start_matches([' ', ':']));
        if !after("'fortran_order'")?.starts_with("False") {
            return None;
        }
        let width = match after("'descr'")?.get(1..4)? {
            "|u1" | "|i1" => 1,
            "<u2" | "<i2" => 2,
            "<u4" | "<i4" => 4,
            _ => return None,
        };
        let shape = after("'shape'")?.strip_prefix('(')?.split_once(')')?.0;
        let shape: Vec<usize> = shape
            .split(',')
            .filter(|n| !n.trim().is_empty())
            .map(|n| n.trim().parse().ok())
            .collect::<Option<_>>()?;
        Some((Self { shape: shape.try_into().ok()?, width }, data))
    }

    fn experts(&self, data: &[u8]) -> Option<RoutedExperts> {
        let [tokens, layers, experts] = self.shape;
        let row = layers.checked_mul(experts)?.checked_mul(self.width)?;
        // The shape is checked against the data before memory of its size is allocated.
        if tokens.checked_mul(row)? != data.len() || row == 0 {
            return None;
        }
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte));
        let layer = |bytes: &[u8]| bytes.chunks_exact(self.width).map(number).collect();
        let token = |bytes: &[u8]| bytes.chunks_exact(experts * self.width).map(layer).collect();
        Some(data.chunks_exact(row).map(token).collect())
    }
}

#[cfg(test)]
mod tests {
    use base64::{Engine as _, prelude::BASE64_STANDARD};
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn parsed(value: Value) -> Option<ResponseTokens> {
        let list = |key: &str| serde_json::from_value(value[key].clone()).unwrap();
        let logprobs: Option<Logprobs> = list_or_none(&value["logprobs"]);
        let fields = TokenFields {
            prompt: list("prompt"),
            completion: list("completion"),
            routed_experts: value.get("experts").cloned(),
        };
        fields.with(logprobs.as_ref())
    }

    fn list_or_none(value: &Value) -> Option<Logprobs> {
        serde_json::from_value(value.clone()).unwrap()
    }

    fn logprobs(entries: &[(&str, Option<f64>)]) -> Value {
        let entry = |(token, logprob): &(&str, Option<f64>)| json!({"token": token, "logprob": logprob});
        json!({"content": entries.iter().map(entry).collect::<Vec<_>>()})
    }

    #[test]
    fn tokens_are_used_only_if_they_are_complete() {
        let two = logprobs(&[("a", Some(-0.5)), ("b", Some(-1.0))]);
        let full = parsed(json!({"prompt": [1, 2], "completion": [3, 4], "logprobs": two})).unwrap();
        assert_eq!(full.prompt_ids, [1, 2]);
        assert_eq!(full.completion_ids, [3, 4]);
        assert_eq!(full.completion_logprobs, [-0.5, -1.0]);
        assert_eq!(full.routed_experts, None);
        for partial in [
            json!({"prompt": null, "completion": [3, 4], "logprobs": two}),
            json!({"prompt": [1], "completion": null, "logprobs": two}),
            json!({"prompt": [1], "completion": [3, 4], "logprobs": null}),
            json!({"prompt": [1], "completion": [3, 4], "logprobs": {"content": null}}),
            json!({"prompt": [1], "completion": [3], "logprobs": two}),
            json!({"prompt": [1], "completion": [3, -4], "logprobs": two}),
            json!({"prompt": ["x"], "completion": [3, 4], "logprobs": two}),
            json!({"prompt": [1], "completion": [3], "logprobs": logprobs(&[("a", None)])}),
        ] {
            assert_eq!(parsed(partial.clone()), None, "{partial}");
        }
    }

    #[test]
    fn tokens_written_as_text_are_read() {
        let wire = logprobs(&[("token_id:7", Some(-0.5)), ("token_id:8", Some(-1.0))]);
        assert_eq!(parsed(json!({"prompt": [1], "logprobs": wire})).unwrap().completion_ids, [7, 8]);
    }

    fn experts(wire: Value) -> Option<RoutedExperts> {
        let logprobs = logprobs(&[("a", Some(0.0))]);
        parsed(json!({"prompt": [1], "completion": [2], "logprobs": logprobs, "experts": wire}))
            .unwrap()
            .routed_experts
    }

    fn npy(descr: &str, shape: &str, data: &[u8]) -> String {
        let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}\n");
        let length = u16::try_from(header.len()).unwrap().to_le_bytes();
        BASE64_STANDARD.encode([b"\x93NUMPY\x01\x00", &length[..], header.as_bytes(), data].concat())
    }

    #[test]
    fn experts_are_read_in_every_format() {
        let lists = vec![vec![vec![1, 2], vec![3, 4]]];
        assert_eq!(experts(json!([[[1, 2], [3, 4]]])), Some(lists.clone()));
        assert_eq!(experts(json!(npy("|u1", "1, 2, 2", &[1, 2, 3, 4]))), Some(lists.clone()));
        assert_eq!(
            experts(json!(npy("<u2", "1, 2, 1", &[1, 2, 0, 1]))),
            Some(vec![vec![vec![513], vec![256]]])
        );
        let data = BASE64_STANDARD.encode([1, 2, 3, 4]);
        let object = json!({"data": data, "shape": [1, 2, 2], "start": 0, "dtype": "uint8"});
        assert_eq!(experts(object), Some(lists.clone()));
        assert_eq!(experts(json!({"data": data, "shape": [1, 2, 2]})), Some(lists));
        let later = json!({"data": data, "shape": [1, 2, 2], "start": 1});
        assert_eq!(experts(later), Some(vec![vec![], vec![vec![1, 2], vec![3, 4]]]));
        assert_eq!(experts(json!(null)), None);
        // base64.b85encode(numpy.array([[[1, 2], [3, 300]]], dtype=numpy.int32).tobytes())
        let wide = json!({"data": "0RR910ssI20{{R3ECB!j", "shape": [1, 2, 2]});
        assert_eq!(experts(wide), Some(vec![vec![vec![1, 2], vec![3, 300]]]));
    }

    #[test]
    fn invalid_experts_are_ignored_and_the_tokens_kept() {
        let data = BASE64_STANDARD.encode([1, 2, 3, 4]);
        for wire in [
            json!("not base64!"),
            json!(data),
            json!(npy("<f4", "1, 1, 1", &[0; 4])),
            json!(npy("|u1", "9, 9, 9", &[0; 4])),
            json!(npy("|u1", "4", &[0; 4])),
            json!({"data": data, "shape": [1, 2, 3]}),
            json!({"data": data, "shape": [usize::MAX, 2, 3]}),
            json!({"data": "", "shape": [usize::MAX, 0, 0]}),
            json!({"data": data, "shape": [1, 2, 2], "start": 3}),
            json!({"data": data, "shape": [1, 2, 2], "dtype": "float"}),
            json!([[1]]),
            json!(5),
        ] {
            assert_eq!(experts(wire.clone()), None, "{wire}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_expert_parser_panic(text in "\\PC{0,40}") {
            experts(json!(text));
        }

        #[test]
        fn no_file_makes_the_expert_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            Array::of_npy(&[&b"\x93NUMPY"[..], &bytes].concat());
        }
    }
}
