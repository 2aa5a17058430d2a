//! What a codec must hold: it gives back what it promises, in an instance that has never seen the values; the same bits in any order; and
//! bytes that nobody encoded do not bring it down.

use super::{End, Examination, answered, other_bits, probe, refused};
use crate::policy::tensor::CHUNK_ELEMENTS;
use crate::policy::{At, Codec, Error, Tensor, TensorKind, chunks};

const SETTINGS: &str = "takes its configuration";
const SAME: &str = "same bits from two instances and in any order";
const ROUND_TRIP: &str = "round trip within the stated error, in a fresh instance";
const DAMAGE: &str = "damaged bytes are answered";
const SIZE: &str = "takes the bits that it states";

/// Errors below this never count, as the contract says.
const ERROR_MIN: f64 = 1.0 / (1_u128 << 100) as f64;

/// What a full chunk may take beyond the stated bits: they are a mean, and for planning.
const BITS_SLACK: f64 = 1.05;

/// Values that speeds are measured on: 4 MiB, more than a core's own cache holds.
const MEASURED_ELEMENTS: u32 = 1 << 20;

/// A chunk of one of the lists.
struct Piece<'a> {
    name: &'static str,
    at: At,
    values: &'a [f32],
}

impl Piece<'_> {
    fn place(&self) -> String {
        format!("{} at {}", self.name, self.at.offset)
    }
}

pub(super) fn examine(exam: &mut Examination<'_>) -> Result<(), End> {
    let lists = probe::lists();
    let tensor = |(name, values): &(&str, Vec<f32>)| tensor(name, values.len() as u32);
    let tensors: Vec<Tensor> = lists.iter().map(tensor).collect();
    let pieces: Vec<Piece<'_>> = chunks(&tensors)
        .map(|(at, elements)| {
            let (name, values) = &lists[at.tensor as usize];
            Piece { name, at, values: &values[at.offset as usize..][..elements] }
        })
        .collect();
    let (policy, config) = (exam.policy, exam.config);
    let open = |property: &str| answered(property, || "setting it up".into(), Codec::open(policy, config, &tensors));

    let (mut first, mut second) = (open(SETTINGS)?, open(SETTINGS)?);
    let traits = first.traits();
    if second.traits() != traits {
        return Err(refused(SAME, format!("one instance states {traits:?}, another {:?}", second.traits())));
    }
    exam.fact("stated_bits_per_value", f64::from(traits.bits_per_value));
    exam.fact("stated_error_of_block_max", f64::from(traits.error_max));
    exam.fact("block_values", f64::from(traits.block));
    if let Some(decay) = traits.feedback_decay {
        exam.fact("feedback_decay", f64::from(decay));
    }
    exam.pass(SETTINGS, if config.is_empty() { "the defaults".into() } else { String::from_utf8_lossy(config) });

    let mut encoded = Vec::new();
    let (mut full_bytes, mut full_values, mut fuel) = (0, 0, 0);
    for piece in &pieces {
        exam.in_time()?;
        let before = first.fuel();
        let bytes =
            answered(ROUND_TRIP, || format!("encoding {}", piece.place()), first.encode(piece.at, piece.values))?;
        if piece.name == probe::FULL_CHUNKS {
            full_bytes += bytes.len();
            full_values += piece.values.len();
            fuel += first.fuel() - before;
        }
        encoded.push(bytes);
    }
    exam.fact("bits_per_value", full_bytes as f64 * 8.0 / full_values as f64);
    exam.fact("encode_fuel_per_value", fuel as f64 / full_values as f64);

    // An instance that encoded nothing: one that remembers the values instead of writing them has nothing to give here.
    let mut fresh = open(ROUND_TRIP)?;
    let mut decoded = Vec::new();
    let (mut worst, mut fuel) = (0.0_f64, 0);
    for (piece, bytes) in pieces.iter().zip(&encoded) {
        exam.in_time()?;
        let before = fresh.fuel();
        let answer = fresh.decode(piece.at, bytes, piece.values.len());
        let values = answered(ROUND_TRIP, || format!("decoding {}", piece.place()), answer)?;
        if piece.name == probe::FULL_CHUNKS {
            fuel += fresh.fuel() - before;
        }
        worst = worst.max(round_trip(piece, &values, traits.block as usize, traits.error_max)?);
        decoded.push(values);
    }
    exam.fact("error_of_block_max", worst);
    exam.fact("decode_fuel_per_value", fuel as f64 / full_values as f64);
    let values: usize = pieces.iter().map(|piece| piece.values.len()).sum();
    exam.pass(ROUND_TRIP, format!("{} lists, {values} values", lists.len()));

    // Another order, and the first instance once more.
    let mut other = open(SAME)?;
    for (piece, bytes, values) in (0..pieces.len()).rev().map(|i| (&pieces[i], &encoded[i], &decoded[i])) {
        exam.in_time()?;
        for (codec, who) in
            [(&mut second, "another instance, last chunk first"), (&mut first, "one instance, a second time")]
        {
            let place = || format!("encoding {} in {who}", piece.place());
            let again = answered(SAME, place, codec.encode(piece.at, piece.values))?;
            if again != *bytes {
                let at = again.iter().zip(bytes).position(|(a, b)| a != b).unwrap_or(again.len().min(bytes.len()));
                return Err(refused(SAME, format!("{}: other bytes from byte {at} on", place())));
            }
        }
        for (codec, who) in
            [(&mut other, "another instance, last chunk first"), (&mut fresh, "one instance, a second time")]
        {
            let place = || format!("decoding {} in {who}", piece.place());
            let again = answered(SAME, place, codec.decode(piece.at, bytes, piece.values.len()))?;
            if let Some(at) = other_bits(&again, values) {
                return Err(refused(SAME, format!("{}: value {at} is {}, was {}", place(), again[at], values[at])));
            }
        }
    }
    exam.pass(SAME, format!("{} chunks, forwards and backwards", pieces.len()));

    damage(exam, &mut other, &pieces, &encoded)?;
    let (stated, found) = (f64::from(traits.bits_per_value), full_bytes as f64 * 8.0 / full_values as f64);
    if found > stated * BITS_SLACK {
        return Err(refused(SIZE, format!("{}: states {stated} bits a value, takes {found:.2}", probe::FULL_CHUNKS)));
    }
    exam.pass(SIZE, format!("{found:.2} bits a value in full chunks"));
    measure(exam)
}

fn tensor(name: &str, elements: u32) -> Tensor {
    Tensor { name: name.into(), shape: vec![elements], kind: TensorKind::Matrix }
}

/// The largest error, as a share of the largest magnitude in its block.
fn round_trip(piece: &Piece<'_>, decoded: &[f32], block: usize, error_max: f32) -> Result<f64, End> {
    let block = block.min(piece.values.len());
    let mut worst = 0.0_f64;
    for (index, (values, decoded)) in piece.values.chunks(block).zip(decoded.chunks(block)).enumerate() {
        let largest = values.iter().fold(0.0, |max: f64, value| max.max(f64::from(value.abs())));
        let bound = (f64::from(error_max) * largest).max(ERROR_MIN);
        for (place, (value, decoded)) in values.iter().zip(decoded).enumerate() {
            let error = (f64::from(*value) - f64::from(*decoded)).abs();
            if error > bound {
                let at = piece.at.offset as usize + index * block + place;
                return Err(refused(
                    ROUND_TRIP,
                    format!(
                        "{}: value {at}, {value:e}, came back as {decoded:e}: off by {error:.3e}, at most {bound:.3e} is stated",
                        piece.name
                    ),
                ));
            }
            if error > ERROR_MIN {
                worst = worst.max(error / largest);
            }
        }
    }
    Ok(worst)
}

/// Bytes that nobody encoded may be refused, or decoded to anything; an answer that cannot be used counts as refused, as it does in a run. What may not come is a
/// trap, or no answer within the limits.
fn damage(exam: &mut Examination<'_>, codec: &mut Codec, pieces: &[Piece<'_>], encoded: &[Vec<u8>]) -> Result<(), End> {
    let Some((piece, bytes)) = pieces.iter().zip(encoded).find(|(piece, _)| piece.name == "noise") else {
        return Ok(());
    };
    let flipped =
        |every: usize| bytes.iter().enumerate().map(|(i, byte)| if i % every == 0 { !byte } else { *byte }).collect();
    let damaged: [(&str, Vec<u8>); 6] = [
        ("no bytes", Vec::new()),
        ("half of the bytes", bytes[..bytes.len() / 2].to_vec()),
        ("a byte more", [&bytes[..], &[0]].concat()),
        ("all bits set", vec![0xff; bytes.len()]),
        ("every byte flipped", flipped(1)),
        ("every 13th byte flipped", flipped(13)),
    ];
    for (what, bytes) in &damaged {
        match codec.decode(piece.at, bytes, piece.values.len()) {
            Ok(_) | Err(Error::Refused { .. } | Error::Nonsense { .. } | Error::Input { .. }) => {}
            other => {
                answered(DAMAGE, || format!("decoding {what}"), other)?;
            }
        }
    }
    exam.pass(DAMAGE, format!("{} kinds of damage", damaged.len()));
    Ok(())
}

fn measure(exam: &mut Examination<'_>) -> Result<(), End> {
    if exam.clock.is_none() {
        return Ok(());
    }
    let tensors = [tensor("measured", MEASURED_ELEMENTS)];
    let values = probe::noise(9, MEASURED_ELEMENTS as usize, 0.01);
    let bytes = values.len() * 4;
    let opened = Codec::open(exam.policy, exam.config, &tensors);
    let mut codec = answered(SETTINGS, || "setting it up".into(), opened)?;
    let mut encoded = Vec::new();
    exam.speed("encode_gb_per_s", bytes, || {
        encoded.clear();
        for ((at, _), chunk) in chunks(&tensors).zip(values.chunks(CHUNK_ELEMENTS)) {
            encoded.push(answered(ROUND_TRIP, || "encoding for time".into(), codec.encode(at, chunk))?);
        }
        Ok(())
    })?;
    exam.speed("decode_gb_per_s", bytes, || {
        for ((at, elements), bytes) in chunks(&tensors).zip(&encoded) {
            answered(ROUND_TRIP, || "decoding for time".into(), codec.decode(at, bytes, elements))?;
        }
        Ok(())
    })
}
