//! The byte-level tokenizer: a token is a byte, and its id is the byte's value.
//!
//! It needs no training, no download and no table, and every text has exactly one encoding. The
//! files written here describe it to Hugging Face's `tokenizers` and `transformers` as a BPE model
//! with no merges over the byte-level alphabet that GPT-2 introduced: 256 printable characters that
//! stand for the 256 bytes.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::error::{Error, Result};

/// Tokens there are: one per byte value.
pub const VOCABULARY: usize = 256;

/// The token between two documents. A text file that holds a zero byte is taken for binary and left
/// out, so it never occurs inside one. It is beginning, end and padding token of the exported model
/// at once.
pub const SEPARATOR: u8 = 0;

/// The separator as the character it is.
const SEPARATOR_TEXT: &str = "\u{0}";

/// Writes `tokenizer.json`, `tokenizer_config.json` and `special_tokens_map.json` into `dir`, so
/// that `transformers.AutoTokenizer.from_pretrained(dir)` encodes a text to its UTF-8 bytes and
/// decodes it back.
///
/// # Errors
/// [`Error::Io`] if a file cannot be written; files written before it stay.
pub fn write_tokenizer_files(dir: &Path) -> Result<()> {
    let vocabulary: Map<String, Value> = (0..=u8::MAX).map(|byte| (spelling(byte), json!(byte))).collect();
    let byte_level = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false
    });
    let special = json!({
        "content": SEPARATOR_TEXT, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true
    });
    let mut added = special.clone();
    added["id"] = json!(SEPARATOR);
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [added],
        "normalizer": null,
        "pre_tokenizer": byte_level,
        "post_processor": null,
        "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": false, "vocab": vocabulary, "merges": []
        }
    });
    let configuration = json!({
        "added_tokens_decoder": {SEPARATOR.to_string(): special},
        "add_prefix_space": false,
        "bos_token": SEPARATOR_TEXT,
        "clean_up_tokenization_spaces": false,
        "eos_token": SEPARATOR_TEXT,
        "pad_token": SEPARATOR_TEXT,
        "tokenizer_class": "PreTrainedTokenizerFast"
    });
    let specials = json!({
        "bos_token": SEPARATOR_TEXT, "eos_token": SEPARATOR_TEXT, "pad_token": SEPARATOR_TEXT
    });
    for (name, value) in [
        ("tokenizer.json", &tokenizer),
        ("tokenizer_config.json", &configuration),
        ("special_tokens_map.json", &specials),
    ] {
        let path = dir.join(name);
        fs::write(&path, format!("{value:#}\n")).map_err(|source| Error::Io { what: "writing", path, source })?;
    }
    Ok(())
}

/// How `tokenizers` spells a byte in a vocabulary: printable Latin-1 characters stand for
/// themselves, the 68 others are numbered from U+0100 on in the order of their values. The
/// separator is spelt as itself instead: as a special token it is cut out of the text before bytes
/// are respelt, and its stand-in (Ā) must stay free to be an ordinary letter of some text.
fn spelling(byte: u8) -> String {
    if byte == SEPARATOR {
        return SEPARATOR_TEXT.to_owned();
    }
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte).to_string();
    }
    let before = (0..byte).filter(|b| !printable(*b)).count();
    let code = 0x100 + u32::try_from(before).unwrap_or(u32::MAX);
    char::from_u32(code).map(String::from).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_a_spelling_of_its_own_and_its_value_as_id() {
        let spellings: std::collections::BTreeSet<String> = (0..=u8::MAX).map(spelling).collect();
        assert_eq!(spellings.len(), VOCABULARY);
        assert!(spellings.iter().all(|text| text.chars().count() == 1));
        // Fixed points of GPT-2's table: space is Ġ, newline is Ċ, delete is ġ, the soft hyphen is
        // the last one, Ń.
        assert_eq!([spelling(b' '), spelling(b'\n'), spelling(0x7f), spelling(0xad)], ["Ġ", "Ċ", "ġ", "Ń"]);
    }

    #[test]
    fn the_files_are_json_with_256_entries() {
        let dir = tempfile::tempdir().expect("a folder");
        write_tokenizer_files(dir.path()).expect("written");
        let text = fs::read_to_string(dir.path().join("tokenizer.json")).expect("there");
        let value: Value = serde_json::from_str(&text).expect("json");
        let vocabulary = value["model"]["vocab"].as_object().expect("a map");
        assert_eq!(vocabulary.len(), VOCABULARY);
        assert_eq!(vocabulary["a"], json!(b'a'));
        assert_eq!(value["added_tokens"][0]["id"], json!(SEPARATOR));
    }
}
