"""Data sets as Hugging Face stores them: Parquet files, or the Arrow files of save_to_disk()."""
import json
import os
import pathlib
import re
import sys

from importers.source import IMAGE_WORDS, LABEL_WORDS, TEST_NAMES, Batch, Refused, Sample, Samples, files_in

ROWS = 64               # read at a time
BUFFER = 1 << 20        # bytes of a file read at a time
LABEL_KINDS = ("number", "name")
PYTHON = pathlib.Path(__file__).resolve().parents[2] / "build/peers/pyarrow/bin/python"  # of scripts/setup --parquet


def arrow():
    """pyarrow, which Debian does not have: starts the script again with a Python that has it. Raises Refused."""
    try:
        import pyarrow.parquet
        return pyarrow
    except ImportError as error:
        if PYTHON.exists() and pathlib.Path(sys.prefix) != PYTHON.parents[1]:
            sys.stdout.flush()
            os.execv(PYTHON, [PYTHON, *sys.argv])
        raise Refused(f"--from parquet requires pyarrow ({error}): run scripts/setup --parquet, or start this script with a Python "
                      "that has it: python3 scripts/import-arrays ...") from None


def has_word(text, word):
    return re.search(rf"(?<![a-z]){word}(?![a-z])", text.lower()) is not None


def splits_of(source, files):
    """The files of "train" and "test", by words in the names of files and folders below the source; without these words, all
    are training files. Raises Refused if only other splits have files, or if the files are several data sets."""
    def word_of(path):
        return next((word for part in reversed(path.relative_to(source).parts) for word in ("train", *TEST_NAMES)
                     if has_word(part, word)), None)

    def data_set(path):
        parents = list(path.relative_to(source).parent.parts)
        cut = next((i for i, part in enumerate(parents) if any(has_word(part, word) for word in ("train", *TEST_NAMES))), None)
        return "/".join(parents[:cut])

    by_word = {}
    for path in sorted(files):
        by_word.setdefault(word_of(path), []).append(path)
    tests = [word for word in TEST_NAMES if word in by_word]
    train = by_word.get("train") or (by_word.get(None) if not tests else None)
    if not train:
        raise Refused(f"{source}: has files of {tests[0]} images, such as {by_word[tests[0]][0].name}, but none of training images")
    test = by_word[tests[0]] if tests else []
    if len(names := {data_set(path): None for path in train + test}) > 1:
        raise Refused(f"{source}: has several data sets: {', '.join(names)}; give the folder of one")
    if source not in files:
        expect_all_parts(train + test)
    return {"train": train, **({"test": test} if test else {})}


def expect_all_parts(files):
    """Raises Refused if one of the files train-00000-of-00002.parquet, ... is missing."""
    parts = {}
    for path in files:
        if match := re.match(r"(.+)-([0-9]{5})-of-([0-9]{5})(?![0-9])", path.name):
            parts.setdefault((path.parent / match[1], int(match[3])), set()).add(int(match[2]))
    for (prefix, count), numbers in parts.items():
        missing = next((number for number in range(count) if number not in numbers), None)
        if missing is not None:
            raise Refused(f"{prefix}-{missing:05}-of-{count:05}: missing; has the download ended early?")


def kind_of(kinds, kind):
    """What a column of an arrow type can be: image, number, name, or the type's name."""
    if kinds.is_struct(kind) and any(kind.field(i).name == "bytes" and kind_of(kinds, kind.field(i).type) == "image"
                                     for i in range(kind.num_fields)):
        return "image"
    if kinds.is_binary(kind) or kinds.is_large_binary(kind):
        return "image"
    if kinds.is_integer(kind) or kinds.is_boolean(kind):
        return "number"
    if kinds.is_dictionary(kind):
        return kind_of(kinds, kind.value_type)
    return "name" if kinds.is_string(kind) or kinds.is_large_string(kind) else str(kind)


def chosen(place, columns, wanted, kinds, words, what, option):
    """The column of some kinds that is wanted, the only one, or the only one with a word as its name. Raises Refused."""
    fitting = [name for name, kind in columns.items() if kind in kinds]
    named = [name for name in fitting if name.lower() in words]
    described = ", ".join(f"{name} ({kind})" for name, kind in columns.items())
    if wanted and wanted not in fitting:
        raise Refused(f"{place}: {option} {wanted}: no such column of {what}; columns: {described}")
    if wanted or len(fitting) == 1 or len(named) == 1:
        return wanted or (named + fitting)[0]
    raise Refused(f"{place}: {'which column has the' if fitting else 'no column of'} {what}{'?' if fitting else ';'} columns: "
                  f"{described}{f'; name it with {option}' if fitting else ''}")


def choose_columns(place, columns, features, options):
    """The columns of images and labels, and the classes' names if the file has them. `columns`: kinds by name;
    `features`: Hugging Face's, by column. Raises Refused."""
    image = chosen(place, columns, options.image_key, ("image",), IMAGE_WORDS, "images", "--image-key")
    classes = {name: feature["names"] for name, feature in features.items()
               if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and name in columns}
    named = {name for name, kind in columns.items() if kind in LABEL_KINDS and name.lower() in LABEL_WORDS}
    wanted = options.label_key or (next(iter(classes)) if len(classes) == 1 and named <= set(classes) else None)
    label = chosen(place, columns, wanted, LABEL_KINDS, LABEL_WORDS, "labels", "--label-key")
    return image, label, classes.get(label)


def features_of(metadata):
    try:
        return json.loads((metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
    except (ValueError, KeyError, TypeError):
        return {}


def opened(pa, path):
    """The schema of a file, and a function that yields its record batches with some columns. Raises Refused."""
    try:
        if path.suffix == ".arrow":
            file = pa.memory_map(str(path))
            if file.read(6) == b"ARROW1":
                raise Refused(f"{path}: has Arrow's file format (Feather); convert it to Parquet")
            file.seek(0)
            reader = pa.ipc.open_stream(file)
            return reader.schema, lambda columns: (batch.select(columns).slice(begin, ROWS) for batch in reader
                                                   for begin in range(0, len(batch), ROWS))
        file = pa.parquet.ParquetFile(path, buffer_size=BUFFER, pre_buffer=False)  # else it would keep all of a file
        return file.schema_arrow, lambda columns: file.iter_batches(ROWS, columns=columns, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise Refused(f"{path}: {' '.join(str(error).split())}") from None


def layout(pa, path):
    """The kinds of a file's columns, by name, and Hugging Face's features. Raises Refused if columns share a name."""
    schema = opened(pa, path)[0]
    if twice := next((name for name in schema.names if schema.names.count(name) > 1), None):
        raise Refused(f"{path}: has several columns called {twice}")
    return {field.name: kind_of(pa.types, field.type) for field in schema}, features_of(schema.metadata)


def expect_same(path, first, layouts, columns):
    """Raises Refused if a file's columns are not like those of the first file. `layouts`: both files' layout()."""
    for column in columns:
        kinds, names = zip(*((own.get(column, "missing"), (features.get(column) or {}).get("names")) for own, features in layouts))
        if kinds[0] != kinds[1]:
            raise Refused(f"{path}: column {column} is {kinds[1]}, but {kinds[0]} in {first}")
        if names[0] != names[1]:
            raise Refused(f"{path}: column {column} has other class names than in {first}")


def sample_of(path, image, label):
    """`path`: of the file, beside which images may lie that it only names."""
    content = image.get("bytes") if isinstance(image, dict) else image
    if content is None and isinstance(image, dict) and image.get("path"):
        try:
            content = (path.parent / image["path"]).read_bytes()
        except OSError as error:
            return Sample(b"", label, f"{image['path']}: {error.strerror}")
        except ValueError as error:  # a zero byte
            return Sample(b"", label, f"{image['path']!r}: {error}")
    if not content:
        return Sample(b"", label, "has no image")
    return Sample(content, label, "has no label" if label is None or label == "" else "")


def batch_of(pa, path, name, columns):
    """The samples of a file. `columns`: of images and labels."""
    def read():
        try:
            for rows in opened(pa, path)[1](list(columns)):
                images, labels = (rows.column(rows.schema.get_field_index(column)).to_pylist() for column in columns)
                for image, label in zip(images, labels):
                    yield sample_of(path, image, int(label) if isinstance(label, bool) else label)
        except (pa.ArrowException, OSError, KeyError) as error:
            raise Refused(f"{path}: {' '.join(str(error).split())}") from None
    return Batch(name, [path], read, lambda number: f"{path}: row {number}")


def read(source, options):
    pa = arrow()
    found = files_in(source, "parquet")
    files = [path for path in found if not path.name.startswith("cache-")] or found  # of map() and others
    splits = splits_of(source, files)
    first = splits["train"][0]
    columns, features = layout(pa, first)
    image, label, classes = choose_columns(first, columns, features, options)
    for path in (path for own in splits.values() for path in own):
        expect_same(path, first, ((columns, features), layout(pa, path)), (image, label))
    others = sorted(set(files) - {path for own in splits.values() for path in own})
    print(f"{source}: images of column {image}, labels of column {label}{f', {len(classes)} classes' if classes else ''}; "
          + ", ".join(f"{len(own)} {name} files" for name, own in splits.items())
          + (f"; {len(others)} others are not read, such as {others[0].name}" if others else ""))
    return Samples({split: [batch_of(pa, path, f"{number:05}-{path.stem}", (image, label)) for number, path in enumerate(own)]
                    for split, own in splits.items()}, columns[label] == "name", classes, (image, label))
