//! The progress that the names of checkpoints tell: steps, samples, epochs and batches, and what is none of them.

/// Words in front of a number that say what it counts; those of three letters and less stand alone.
const WORDS: &[(&str, Counted)] = &[
    ("step", Counted::Steps),
    ("steps", Counted::Steps),
    ("iter", Counted::Steps),
    ("iters", Counted::Steps),
    ("iteration", Counted::Steps),
    ("iterations", Counted::Steps),
    ("update", Counted::Steps),
    ("updates", Counted::Steps),
    ("itr", Counted::Steps),
    // Composer: batches since the beginning.
    ("ba", Counted::Steps),
    ("checkpoint", Counted::Checkpoints),
    ("ckpt", Counted::Checkpoints),
    ("sample", Counted::Samples),
    ("samples", Counted::Samples),
    ("token", Counted::Samples),
    ("tokens", Counted::Samples),
    ("epoch", Counted::Epochs),
    ("epochs", Counted::Epochs),
    ("ep", Counted::Epochs),
    ("batch", Counted::Batches),
    ("batches", Counted::Batches),
    ("rank", Counted::Ranks),
    // fairseq's `-shard0`.
    ("shard", Counted::Ranks),
    ("size", Counted::Size),
    ("of", Counted::Shards),
    ("part", Counted::Size),
    // How good it is.
    ("acc", Counted::Measure),
    ("accuracy", Counted::Measure),
    ("loss", Counted::Measure),
    ("score", Counted::Measure),
    ("map", Counted::Measure),
    ("iou", Counted::Measure),
    ("fid", Counted::Measure),
    ("psnr", Counted::Measure),
    ("bleu", Counted::Measure),
    ("ppl", Counted::Measure),
    ("reward", Counted::Measure),
    ("rewards", Counted::Measure),
    ("rew", Counted::Measure),
    ("return", Counted::Measure),
    ("returns", Counted::Measure),
    ("val", Counted::Measure),
    ("metric", Counted::Measure),
    ("error", Counted::Measure),
    ("err", Counted::Measure),
    ("wer", Counted::Measure),
    ("cer", Counted::Measure),
    ("eer", Counted::Measure),
    ("auc", Counted::Measure),
    ("dice", Counted::Measure),
    ("mae", Counted::Measure),
    ("mse", Counted::Measure),
    ("rmse", Counted::Measure),
    ("ssim", Counted::Measure),
    ("lpips", Counted::Measure),
    ("snr", Counted::Measure),
    ("pesq", Counted::Measure),
    ("rouge", Counted::Measure),
    ("ndcg", Counted::Measure),
    ("elo", Counted::Measure),
    ("success", Counted::Measure),
    ("perplexity", Counted::Measure),
    ("kappa", Counted::Measure),
    ("recall", Counted::Measure),
    ("precision", Counted::Measure),
    // The mean of so many checkpoints.
    ("avg", Counted::Size),
    ("average", Counted::Size),
    ("node", Counted::Size),
    ("gpu", Counted::Size),
    ("worker", Counted::Size),
    ("process", Counted::Size),
];

/// Two words in front of a number that counts something else than the second one says: the rank of a matrix, and the
/// restarts of a job that Lightning saved for (`hpc_ckpt_2.ckpt`).
const NO_PROGRESS: &[(&str, &str)] = &[("lora", "rank"), ("hpc", "ckpt")];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counted {
    Steps,
    /// `checkpoint-500`: steps, unless another word says what counts them.
    Checkpoints,
    Samples,
    Epochs,
    Batches,
    Ranks,
    /// Ranks or parts in all, or a part that is no rank.
    Size,
    /// Where a rank stands, beside its own number.
    Axis,
    Measure,
    /// The files in all: the number before is that of one.
    Shards,
    Unknown,
}

impl Counted {
    fn is_progress(self) -> bool {
        [Counted::Steps, Counted::Samples, Counted::Epochs, Counted::Batches].contains(&self)
    }
}

/// A number with up to nine digits behind its point, in billionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Number(u128);

const ONE: u128 = 1_000_000_000;

impl Number {
    pub(crate) fn of(whole: u64) -> Number {
        Number(u128::from(whole) * ONE)
    }

    fn read(digits: &str, unit: u128) -> Option<Number> {
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let whole: u64 = whole.replace([',', '_'], "").parse().ok()?;
        let fraction = format!("{:0<9}", fraction.get(..9).unwrap_or(fraction));
        let number = u128::from(whole) * ONE + fraction.parse::<u128>().ok()?;
        number.checked_mul(unit).map(Number)
    }

    /// None of a fraction.
    pub(crate) fn whole(self) -> Option<u64> {
        u64::try_from(self.0 / ONE).ok().filter(|_| self.0.is_multiple_of(ONE))
    }
}

/// Where a checkpoint stands in the progress of its program. Steps and epochs cannot be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    /// To the second.
    Date(Number),
    /// With the batch in it.
    Epoch(Number, Option<Number>),
    Step(Number),
}

impl Place {
    pub(crate) fn step(self) -> Option<u64> {
        match self {
            Place::Step(step) => step.whole(),
            Place::Date(_) | Place::Epoch(..) => None,
        }
    }
}

/// What a name tells of the progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Told {
    step: Option<Number>,
    epoch: Option<Number>,
    batch: Option<Number>,
    /// The only number of the name, without a word.
    pub(crate) only: Option<Number>,
    date: Option<Number>,
}

impl Told {
    fn has_word(&self) -> bool {
        self.has_step_or_epoch() || self.batch.is_some()
    }

    /// Whether it has a step or an epoch behind a word.
    pub(crate) fn has_step_or_epoch(&self) -> bool {
        self.step.is_some() || self.epoch.is_some()
    }

    /// What the name of a folder and the names above it tell of what lies in it.
    pub(crate) fn of_folder(name: &str, above: Told) -> Told {
        let own = told(name);
        // A run with batches of 64 is not at batch 64.
        let batch = own.batch.filter(|_| own.epoch.is_some());
        Told { only: None, batch, ..own }.within(above).0
    }

    /// With what the names above tell; and whether it stands in this name.
    pub(crate) fn within(self, above: Told) -> (Told, bool) {
        match self.has_word() {
            true if !self.has_step_or_epoch() => (Told { epoch: above.epoch, ..self }, true),
            true => (self, true),
            // A number without a word may be a rank.
            false if above.has_word() => (above, false),
            false => {
                let date = self.date.or(above.date);
                (Told { date, ..self }, self.only.or(self.date).is_some())
            }
        }
    }

    /// Its epoch and its step, if it has both.
    pub(crate) fn step_of_epoch(self) -> Option<(Number, Number)> {
        self.epoch.zip(self.step)
    }

    /// The same where each epoch counts its steps anew.
    pub(crate) fn within_epoch(self) -> Told {
        match self.epoch {
            Some(_) => Told { step: None, batch: self.step.or(self.batch), ..self },
            None => self,
        }
    }

    /// With this as the only number.
    pub(crate) fn or_only(self, only: Option<Number>) -> Told {
        Told { only: self.only.or(only), ..self }
    }

    pub(crate) fn place(self) -> Option<Place> {
        let Told { step, epoch, batch, only, date } = self;
        let steps = step.or_else(|| batch.filter(|_| epoch.is_none())).or(only).map(Place::Step);
        let steps = steps.or(date.map(Place::Date));
        match epoch {
            Some(epoch) if step.is_none() => Some(Place::Epoch(epoch, batch)),
            _ => steps,
        }
    }
}

/// A number in a name.
pub(crate) struct Found<'n> {
    pub(crate) digits: &'n str,
    /// The text between the number before it and this one.
    pub(crate) before: &'n str,
    pub(crate) after: &'n str,
    pub(crate) counts: Counted,
}

pub(crate) fn numbers(name: &str) -> Vec<Found<'_>> {
    let mut numbers: Vec<Found<'_>> = Vec::new();
    let mut rest = name;
    while let Some(at) = rest.find(|letter: char| letter.is_ascii_digit()) {
        let (before, from) = rest.split_at(at);
        // `checkpoint.0.100.pt` has two numbers (PhysicsNeMo), `loss_0.25.pt` one.
        let has_point = !before.ends_with('.');
        let is_in = |letter: char| letter.is_ascii_digit() || (has_point && letter == '.');
        let end = from.find(|letter: char| !is_in(letter));
        let digits = from.get(..end.unwrap_or(from.len())).unwrap_or_default();
        let digits = grouped(from, digits.trim_end_matches('.'), before);
        let after = from.get(digits.len()..).unwrap_or_default();
        let mut counts = counted(before, after);
        // `00003-of-00004`, not `epoch_3_of_10` and `best_of_3`.
        if counts == Counted::Shards {
            let is_between = before.trim_matches(['-', '_', '.', ' ']).eq_ignore_ascii_case("of");
            match numbers.last_mut().filter(|one| is_between && !one.counts.is_progress()) {
                Some(one) => one.counts = Counted::Ranks,
                None => counts = Counted::Size,
            }
        }
        numbers.push(Found { digits, before, after, counts });
        rest = after;
    }
    for at in 0..numbers.len() {
        if is_date(numbers.get(at..at + 3).unwrap_or_default()) {
            numbers.iter_mut().skip(at).take(3).for_each(|one| one.counts = Counted::Unknown);
        }
    }
    // `checkpoint_20240131_120000.pt`, in which no word is meant for a number.
    let is_day = |one: &Found<'_>| one.counts == Counted::Checkpoints && day(&[one]).is_some();
    numbers.iter_mut().filter(|one| is_day(one)).for_each(|one| one.counts = Counted::Unknown);
    if numbers.iter().any(|one| one.counts == Counted::Ranks) {
        let has_step = numbers.iter().any(|one| one.counts.is_progress());
        let axes = numbers.iter_mut().filter(|one| is_axis(one, has_step));
        axes.for_each(|one| one.counts = Counted::Axis);
    }
    numbers
}

/// All numbers of a name, in their order.
pub(crate) fn values(name: &str) -> Vec<Option<Number>> {
    numbers(name).iter().map(Found::value).collect()
}

/// Words in front of numbers that say where a rank stands.
const AXES: &[&str] = &["tp", "pp", "dp", "mp", "zo", "node", "host", "replica", "gpu"];
/// The same where the name has a step; else they are stages of the training.
const AXES_OF_STEP: &[&str] = &["stage", "part"];

fn is_axis(one: &Found<'_>, has_step: bool) -> bool {
    let before = one.before.trim_end_matches(['-', '_', '=']);
    let is_behind = |word: &&str| {
        let rest = before.strip_suffix(*word);
        rest.is_some_and(|rest| !rest.ends_with(char::is_alphabetic))
    };
    let may_be = [Counted::Unknown, Counted::Size].contains(&one.counts);
    let is_known = AXES.iter().any(is_behind) || (has_step && AXES_OF_STEP.iter().any(is_behind));
    may_be && !one.digits.contains('.') && is_known
}

/// 2024-01-31 or 12-00-00.
fn is_date(numbers: &[Found<'_>]) -> bool {
    let two = |one: &Found<'_>| one.digits.len() == 2 && one.before == "-";
    match numbers {
        [first, rest @ ..] if !rest.is_empty() => {
            [2, 4].contains(&first.digits.len()) && rest.iter().all(two)
        }
        _ => false,
    }
}

/// Year, month and day as one number, and how many numbers of the name these are: `2024-01-31` and `20240131`.
fn day(numbers: &[&Found<'_>]) -> Option<(u64, usize)> {
    let digits = |at: usize| numbers.get(at).map(|one| one.digits).unwrap_or_default();
    let (text, count) = match digits(0).len() {
        8 => (digits(0).to_owned(), 1),
        4 if digits(1).len() == 2 => ([digits(0), digits(1), digits(2)].concat(), 3),
        _ => return None,
    };
    let are_apart = |one: &&Found<'_>| ["-", "_", "."].contains(&one.before);
    let are_dated = text.len() == 8 && numbers.iter().take(count).skip(1).all(are_apart);
    let day: u64 = text.parse().ok().filter(|_| are_dated)?;
    let (year, month) = (day / 10_000, day / 100 % 100);
    let is_day = (1970..2100).contains(&year) && (1..=12).contains(&month);
    (is_day && (1..=31).contains(&(day % 100))).then_some((day, count))
}

/// The first date in a name, to the second: `2024-01-31_12-00-00`, `20240131_120000`.
fn date(numbers: &[Found<'_>]) -> Option<Number> {
    let all: Vec<&Found<'_>> = numbers.iter().collect();
    let (at, (day, count)) =
        (0..all.len()).find_map(|at| Some((at, day(all.get(at..).unwrap_or_default())?)))?;
    let is_behind = |one: &&&Found<'_>| {
        ["-", "_", "T", "t", "+", " ", ":", "h", "m"].contains(&one.before)
            && one.digits.len().is_multiple_of(2)
    };
    let mut time: String =
        all.iter().skip(at + count).take_while(is_behind).map(|one| one.digits).collect();
    time.truncate(6);
    let time: u64 = format!("{time:0<6}").parse().ok()?;
    Some(Number::of(day * 1_000_000 + time))
}

/// Whether a name is a date and nothing else: `2024-01-31_12-00-00`.
pub(crate) fn is_only_date(name: &str) -> bool {
    let is_part = |letter: char| letter.is_ascii_digit() || "-_T:+. ".contains(letter);
    date(&numbers(name)).is_some() && name.chars().all(is_part)
}

/// Whether a name has a date or a time of day.
pub(crate) fn has_date(name: &str) -> bool {
    numbers(name).windows(3).any(is_date)
}

/// The digits with those that follow in groups of three: `1,000`, and behind a word of steps `1_000_000`, which elsewhere
/// are several numbers.
fn grouped<'n>(from: &'n str, digits: &'n str, before: &str) -> &'n str {
    let groups = |mark: char| {
        let (mut count, mut rest) = (0, from.get(digits.len()..).unwrap_or_default());
        while let Some(group) = rest.strip_prefix(mark) {
            if group.bytes().take_while(u8::is_ascii_digit).count() != 3 {
                break;
            }
            (count, rest) = (count + 1, group.get(3..).unwrap_or_default());
        }
        count
    };
    if digits.len() > 3 || digits.contains('.') || digits.starts_with('0') {
        return digits;
    }
    let is_step = || counted(before, "") == Counted::Steps;
    let count = match (groups(','), groups('_')) {
        (0, 2..) if is_step() => groups('_'),
        (commas, _) => commas,
    };
    from.get(..digits.len() + 4 * count).unwrap_or(digits)
}

fn counted(before: &str, after: &str) -> Counted {
    let is_letter = |letter: char| letter.is_alphabetic();
    let of = |word: &str| {
        let word = word.to_ascii_lowercase();
        let is_it = |known: &str| match known.len() {
            ..=3 => word == known,
            _ => word.ends_with(known),
        };
        WORDS.iter().find(|(known, _)| is_it(known)).map(|(_, counted)| *counted)
    };
    let trimmed = before.trim_end_matches(['-', '_', '=', '.', ' ', ':']);
    let mut last = trimmed.rsplit(|letter| !is_letter(letter));
    let word = last.next().unwrap_or_default();
    let before_it = last.next().unwrap_or_default().to_ascii_lowercase();
    let is_such = |(first, second): &&(&str, &str)| {
        before_it.ends_with(first) && word.eq_ignore_ascii_case(second)
    };
    if NO_PROGRESS.iter().any(|pair| is_such(&pair)) {
        return Counted::Size;
    }
    // `it4000`, not `gemma-2b-it-4bit`.
    if word == "it" && before.ends_with(word) {
        return Counted::Steps;
    }
    // `1000_steps`, unless the word belongs to the number behind it.
    let behind = || {
        let from = after.trim_start_matches(['-', '_']);
        let end = from.find(|letter| !is_letter(letter)).unwrap_or(from.len());
        let (word, rest) = from.split_at(end);
        let is_of_next =
            rest.trim_start_matches(['-', '_', '=']).starts_with(|one: char| one.is_ascii_digit());
        let counted = of(word).filter(|_| !is_of_next && word.len() > 3)?;
        [Counted::Steps, Counted::Epochs].contains(&counted).then_some(counted)
    };
    // torchtnt: `train_step_20_eval_step_5`.
    let mut words = before.split(|letter| !is_letter(letter));
    if of(word) == Some(Counted::Steps) && words.any(|word| word == "eval") {
        return Counted::Measure;
    }
    of(word).or_else(behind).unwrap_or(Counted::Unknown)
}

impl Found<'_> {
    pub(crate) fn value(&self) -> Option<Number> {
        if let Some(power) = self.power() {
            return Number::read(self.digits, 10_u128.checked_pow(power)?);
        }
        let mut letters = self.after.chars();
        let (unit, next) = (letters.next(), letters.next());
        let is_unit = !next.is_some_and(char::is_alphanumeric);
        let unit = match unit.map(|unit| unit.to_ascii_lowercase()).filter(|_| is_unit) {
            Some('k') => 1_000,
            Some('m') => 1_000_000,
            // A checkpoint of a model with 7b parameters is not one of step 7b.
            Some('b' | 'g') if self.counts != Counted::Checkpoints => 1_000_000_000,
            _ => 1,
        };
        Number::read(self.digits, unit)
    }

    /// The exponent in `1e6`.
    fn power(&self) -> Option<u32> {
        let rest = self.after.strip_prefix(['e', 'E'])?;
        let end = rest.find(|letter: char| !letter.is_ascii_alphanumeric()).unwrap_or(rest.len());
        rest.get(..end)?.parse().ok().filter(|power| *power < 16)
    }

    /// Whether it may be a step without a word: `resnet50-11821763.pth` has a hash of digits, since steps of so many digits
    /// are round.
    pub(crate) fn may_be_step(&self) -> bool {
        let is_hash =
            self.digits.len() > 7 && !self.digits.starts_with('0') && !self.digits.ends_with("00");
        self.counts == Counted::Unknown && !is_hash
    }

    /// Whether it is a word of its own: `model_12.pt` and `model000012.pt`, not `resnet50.pt` or `llama-7b.safetensors`.
    pub(crate) fn is_apart(&self) -> bool {
        let is_padded = self.digits.len() > 3 && self.digits.starts_with('0');
        (is_padded || !self.before.ends_with(char::is_alphabetic))
            && !self.after.starts_with(char::is_alphabetic)
            && !self.digits.contains('.')
    }
}

/// The number behind a word (`epoch=3-step=1200.ckpt`, `checkpoint-500`, `iter_0001000`, `step-9k.pt`), else the only
/// number, if it is a word of its own.
pub(crate) fn told(name: &str) -> Told {
    let numbers = numbers(name);
    let last = |counted: Counted| {
        numbers.iter().rev().find(|one| one.counts == counted).and_then(Found::value)
    };
    let is_part = |one: &&Found<'_>| PARTS.contains(&one.counts);
    let rest: Vec<&Found<'_>> = numbers.iter().filter(|one| !is_part(one)).collect();
    // Those within words are the name of a model or a run: `gpt2_4000.pt`.
    let mut apart = rest.iter().filter(|one| one.counts != Counted::Unknown || one.is_apart());
    let only = match (apart.next(), apart.next()) {
        (Some(only), None) if only.may_be_step() && !may_be_score(name, &numbers) => only.value(),
        _ => None,
    };
    let steps = || last(Counted::Steps).or_else(|| pair(&rest)).or_else(|| last(Counted::Samples));
    Told {
        // `checkpoint_10_epoch_3.pth` is of step 10, `checkpoint-epoch3.pth` of none.
        // `checkpoint_0.87.pth` is how good it is.
        step: steps()
            .or_else(|| last(Counted::Checkpoints).filter(|number| number.whole().is_some())),
        epoch: last(Counted::Epochs),
        batch: last(Counted::Batches),
        only,
        date: date(&numbers),
    }
}

/// Whether a number without a word may be that of a run or a score: `seed_42_last.pt`, `ner_f1_88.pt`.
pub(crate) fn may_be_score(name: &str, numbers: &[Found<'_>]) -> bool {
    let is_score = |one: &Found<'_>| {
        let word = words(one.before).last().unwrap_or_default();
        !one.is_apart() && one.before.ends_with(word) && SCORES.contains(&word)
    };
    is_remarkable(name) || numbers.iter().any(is_score)
}

/// Words of scores that have a number of their own: `ner_f1_88.pt`, `top5_93.pt`.
const SCORES: &[&str] = &["f", "top", "ap", "r", "p", "hit", "hits", "pass"];

/// What is no progress.
const PARTS: &[Counted] =
    &[Counted::Ranks, Counted::Size, Counted::Axis, Counted::Measure, Counted::Shards];

/// Whether a name says that it is the best or the last one.
pub(crate) fn is_remarkable(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.contains("best") || words(&name).any(|word| REMARKABLE.contains(&word))
}

/// The words of a name, without its numbers.
pub(crate) fn words(name: &str) -> impl Iterator<Item = &str> + Clone {
    name.split(|letter: char| !letter.is_ascii_alphabetic())
}

const REMARKABLE: &[&str] = &[
    "last",
    "latest",
    "newest",
    "current",
    "final",
    "recovery",
    "top",
    "min",
    "max",
    "minloss",
    // Copied from where a program began.
    "pretrained",
    // Lightning, when a job is about to end.
    "hpc",
];

/// The updates of fairseq's `checkpoint_EPOCH_UPDATES.pt`, and the epoch of PhysicsNeMo's `checkpoint.RANK.EPOCH.pt`.
fn pair(numbers: &[&Found<'_>]) -> Option<Number> {
    let [epoch, updates] = numbers else { return None };
    let is_pair = epoch.counts == Counted::Checkpoints
        && ["_", "."].iter().any(|apart| epoch.before.ends_with(apart) && updates.before == *apart)
        && updates.is_apart()
        && epoch.digits.len() < 7;
    updates.value().filter(|updates| is_pair && epoch.value().is_some_and(|one| one <= *updates))
}

/// The stage of a run in a name, such as 2 in `stage2_step_100.pt`.
pub(crate) fn stage_of(name: &str) -> Option<u64> {
    let is_stage = |one: &&Found<'_>| {
        let before = one.before.trim_end_matches(['-', '_', '=']).to_ascii_lowercase();
        ["stage", "phase"].iter().any(|word| before.ends_with(word))
    };
    numbers(name).iter().find(is_stage)?.digits.parse().ok()
}

/// The step in a name.
pub(crate) fn step_of(name: &str) -> Option<u64> {
    told(name).place()?.step()
}
