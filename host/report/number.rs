//! Numbers for people.

/// An integer with a comma between thousands.
pub(super) fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A count in three digits with k, M, G or T behind it.
pub(super) fn short(value: f64) -> String {
    let units = ["", "k", "M", "G", "T"];
    let (mut value, mut unit) = (value, 0);
    // 999.5 would be shown as 1000.
    while value.abs() >= 999.5 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    let text = match value.abs() {
        _ if unit == 0 => format!("{value:.0}"),
        small if small < 9.995 => format!("{value:.2}"),
        medium if medium < 99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    };
    if unit == 0 { text } else { format!("{text} {}", units[unit]) }
}

/// A duration in the two largest units it has.
pub(super) fn duration(seconds: f64) -> String {
    if seconds < 60.0 {
        return format!("{seconds:.1} s");
    }
    // Negative or not finite: shown as none. The cast saturates.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "saturates, and is shown in whole seconds"
    )]
    let whole = seconds.round() as u64;
    let (days, hours, minutes, rest) = (whole / 86_400, whole / 3600 % 24, whole / 60 % 60, whole % 60);
    match (days, hours) {
        (0, 0) => format!("{minutes} min {rest} s"),
        (0, _) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}
