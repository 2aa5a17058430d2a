//! The bundled codecs: round trips within the stated error on hostile values, and bytes that nobody encoded.

use tombolo::policy::{At, Codec, Error, Tensor, TensorKind, chunks};

use crate::memory::{noise, runtime, tensor};

/// Every bundled codec.
const CODECS: [&str; 7] = ["bf16", "f32", "fp4", "int4", "int8", "sign", "topk"];

/// Lists of values that have broken codecs before, one a tensor.
pub fn hostile() -> Vec<(&'static str, Vec<f32>)> {
    let scaled = |seed, count, scale: f32| noise(seed, count).into_iter().map(|value| value * 100.0 * scale).collect();
    vec![
        ("zeros", vec![0.0; 300]),
        ("negative zeros", vec![-0.0; 5]),
        ("one value", vec![0.1]),
        ("largest", vec![f32::MAX; 129]),
        ("most negative", vec![f32::MIN; 31]),
        ("smallest normal", vec![f32::MIN_POSITIVE; 128]),
        ("denormal", vec![f32::from_bits(1); 200]),
        ("next to nothing", vec![1e-30, -1e-31, 8e-31, 0.0]),
        ("ordinary", scaled(1, 1_000, 1.0)),
        ("tiny", scaled(2, 1_000, 1e-20)),
        ("denormal noise", scaled(3, 257, 1e-39)),
        ("huge", scaled(4, 1_000, 3e38)),
        (
            "mixed",
            scaled(5, 640, 1.0)
                .into_iter()
                .zip(0..)
                .map(|(value, i): (f32, i32)| value * 10.0_f32.powi(i % 70 - 35))
                .collect(),
        ),
        (
            "outliers",
            scaled(6, 640, 1e-3)
                .into_iter()
                .zip(0..)
                .map(|(value, i)| if i % 97 == 0 { f32::MAX } else { value })
                .collect(),
        ),
        ("several chunks", scaled(7, 100_000, 0.01)),
    ]
}

pub fn tensors(lists: &[(&str, Vec<f32>)]) -> Vec<Tensor> {
    lists.iter().map(|(name, values)| tensor(name, &[values.len() as u32], TensorKind::Matrix)).collect()
}

/// What is left of each list after encoding, and decoding in another instance; and the bytes it took.
fn round_trip(name: &str, lists: &[(&str, Vec<f32>)]) -> Vec<(Vec<f32>, usize)> {
    let policy = runtime().bundled(name).expect("bundled");
    let tensors = tensors(lists);
    let mut encoder = Codec::open(&policy, b"", &tensors).expect("opens");
    let mut decoder = Codec::open(&policy, b"", &tensors).expect("opens");
    let mut out: Vec<(Vec<f32>, usize)> = vec![Default::default(); lists.len()];
    for (at, elements) in chunks(&tensors) {
        let values = &lists[at.tensor as usize].1[at.offset as usize..][..elements];
        let bytes = encoder.encode(at, values).expect("encodes");
        let (decoded, size) = &mut out[at.tensor as usize];
        *size += bytes.len();
        decoded.extend(decoder.decode(at, &bytes, elements).expect("decodes"));
    }
    out
}

#[test]
fn round_trips_stay_within_the_stated_error_on_hostile_values() {
    let lists = hostile();
    for name in CODECS {
        let policy = runtime().bundled(name).expect("bundled");
        let traits = Codec::open(&policy, b"", &tensors(&lists)).expect("opens").traits();
        for ((what, values), (decoded, _)) in lists.iter().zip(round_trip(name, &lists)) {
            assert_eq!(values.len(), decoded.len());
            for (values, decoded) in values.chunks(traits.block as usize).zip(decoded.chunks(traits.block as usize)) {
                let largest = values.iter().fold(0.0, |max: f64, value| max.max(f64::from(value.abs())));
                // Errors below 2^-100 never count, as the contract says.
                let bound = (f64::from(traits.error_max) * largest).max(2.0_f64.powi(-100));
                for (value, decoded) in values.iter().zip(decoded) {
                    let error = (f64::from(*value) - f64::from(*decoded)).abs();
                    assert!(error <= bound, "{name}, {what}: {value} became {decoded}");
                }
            }
        }
    }
}

#[test]
fn a_codec_takes_the_bits_that_it_states() {
    let lists = [("full chunks", noise(1, 3 * 32_768))];
    for name in CODECS {
        let policy = runtime().bundled(name).expect("bundled");
        let traits = Codec::open(&policy, b"", &tensors(&lists)).expect("opens").traits();
        let [(_, bytes)] = &round_trip(name, &lists)[..] else { panic!("one list") };
        assert_eq!(*bytes as f32 * 8.0, traits.bits_per_value * 98_304.0, "{name}");
    }
}

#[test]
fn the_error_feedback_that_a_codec_asks_for_fits_it() {
    let decay = |name| {
        let policy = runtime().bundled(name).expect("bundled");
        Codec::open(&policy, b"", &tensors(&[("t", vec![0.0])])).expect("opens").traits().feedback_decay
    };
    assert_eq!([decay("f32"), decay("bf16")], [None, None]);
    // Quantisers that lose no more than a part of any offer; and one whose residual grows old.
    assert_eq!(["int8", "int4", "fp4", "sign"].map(decay), [Some(1.0); 4]);
    assert_eq!(decay("topk"), Some(0.95));
}

#[test]
fn bytes_that_nobody_encoded_are_refused() {
    let lists = [("t", noise(1, 300))];
    let at = At { tensor: 0, offset: 0 };
    for name in CODECS {
        let policy = runtime().bundled(name).expect("bundled");
        let mut codec = Codec::open(&policy, b"", &tensors(&lists)).expect("opens");
        let bytes = codec.encode(at, &lists[0].1).expect("encodes");
        for wrong in [&bytes[..bytes.len() - 1], &[], &[&bytes[..], &[0]].concat()] {
            assert!(matches!(codec.decode(at, wrong, 300), Err(Error::Refused { .. })), "{name}");
        }
        let oversized = vec![0; 300 * 8 + 65];
        assert!(matches!(codec.decode(at, &oversized, 300), Err(Error::Input { .. })), "{name}");
        // All bits set is NaN in bf16 and in a scale.
        let error = codec.decode(at, &vec![0xff; bytes.len()], 300).expect_err("not finite");
        assert!(error.is_policy_failure(), "{error}");
        assert_eq!(codec.decode(at, &bytes, 300).expect("still works").len(), 300);
    }
}

#[test]
fn what_is_not_a_chunk_or_not_finite_is_refused_before_the_policy_sees_it() {
    let lists = [("t", noise(1, 40_000))];
    let policy = runtime().bundled("bf16").expect("bundled");
    let mut codec = Codec::open(&policy, b"", &tensors(&lists)).expect("opens");
    for (tensor, offset, count) in [(1, 0, 10), (0, 5, 10), (0, 0, 40_000), (0, 32_768, 7_233), (0, 65_536, 0)] {
        let answer = codec.encode(At { tensor, offset }, &vec![0.0; count]);
        assert!(matches!(answer, Err(Error::Input { .. })), "{tensor} {offset} {count}");
    }
    for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut values = lists[0].1[..32_768].to_vec();
        values[31_000] = wrong;
        let error = codec.encode(At { tensor: 0, offset: 0 }, &values).expect_err("not finite");
        assert!(matches!(&error, Error::Input { found, .. } if found.contains("31000")), "{error}");
    }
}

#[test]
fn four_bits_take_at_most_27_hundredths_of_bfloat16_and_the_others_what_they_say() {
    let bits = |name| {
        let policy = runtime().bundled(name).expect("bundled");
        Codec::open(&policy, b"", &tensors(&[("t", vec![0.0])])).expect("opens").traits().bits_per_value
    };
    assert!(bits("int4") <= 0.27 * bits("bf16") && bits("fp4") <= 0.27 * bits("bf16"));
    assert_eq!((bits("f32"), bits("sign")), (32.0, 1.125));
    assert!(bits("topk") < 0.14, "{}", bits("topk"));
}

#[test]
fn what_a_codec_loses_comes_in_with_error_feedback_and_is_lost_without() {
    // The same update offered fifty times. With feedback what arrives adds up to nearly all that was sent; without, what is small never does.
    let sent = noise(8, 2_000);
    let norm = |values: &[f64]| values.iter().map(|value| value * value).sum::<f64>().sqrt();
    for (name, config) in [("int4", ""), ("fp4", ""), ("sign", ""), ("topk", r#"{"share": 0.1}"#)] {
        let policy = runtime().bundled(name).expect("bundled");
        let mut codec = Codec::open(&policy, config.as_bytes(), &tensors(&[("t", sent.clone())])).expect("opens");
        let at = At { tensor: 0, offset: 0 };
        let mut missing = |decay: f32| {
            let (mut residual, mut lost) = (vec![0.0_f32; sent.len()], vec![0.0_f64; sent.len()]);
            for _ in 0..50 {
                let wanted: Vec<f32> = sent.iter().zip(&residual).map(|(sent, rest)| sent + decay * rest).collect();
                let bytes = codec.encode(at, &wanted).expect("encodes");
                let arrived = codec.decode(at, &bytes, sent.len()).expect("decodes");
                for (index, arrived) in arrived.iter().enumerate() {
                    residual[index] = wanted[index] - arrived;
                    lost[index] += f64::from(sent[index] - arrived);
                }
            }
            norm(&lost) / (50.0 * norm(&sent.iter().map(|value| f64::from(*value)).collect::<Vec<_>>()))
        };
        let decay = if name == "topk" { 0.95 } else { 1.0 };
        let (with, without) = (missing(decay), missing(0.0));
        assert!(with < 0.7 * without, "{name}: {with} is missing with feedback, {without} without");
    }
}

#[test]
fn a_codec_without_settings_refuses_any() {
    for name in ["bf16", "f32", "fp4", "int4", "int8", "sign"] {
        let policy = runtime().bundled(name).expect("bundled");
        let error = Codec::open(&policy, br#"{"bits": 4}"#, &[]).expect_err("no such field");
        assert!(error.to_string().contains(r#"unknown field "bits"; this policy takes none"#), "{error}");
    }
}
