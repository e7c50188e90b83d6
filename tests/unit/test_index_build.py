"""An index is whole or not there, and parts that do not belong together are refused by name."""

import argparse
import gzip
import json

import faiss
import numpy as np
import pytest

from retrieval_server import build as building
from retrieval_server.backends import BACKENDS
from retrieval_server.backends.faiss_index import FaissBackend
from retrieval_server.build import build_index
from retrieval_server.cli import add_index_parser, add_serve_parser
from retrieval_server.corpus import Corpus, read_rows
from retrieval_server.encoder import FAMILIES, PrefixEncoder, family_of, load_encoder
from retrieval_server.loading import open_index
from retrieval_server.manifest import Manifest

PASSAGES = {
    "Kelp": "Kelp is a large brown seaweed that grows in underwater forests.",
    "Eiffel Tower": "The Eiffel Tower is a wrought-iron tower in Paris, France.",
    "Mount Everest": "Mount Everest is the highest mountain above sea level.",
    "Photosynthesis": "Plants turn sunlight, water and carbon dioxide into sugar.",
    "Ludwig van Beethoven": "Beethoven was a German composer of nine symphonies.",
    "Great Barrier Reef": "The world's largest coral reef lies off the coast of Australia.",
    "Penicillin": "Penicillin is an antibiotic discovered by Alexander Fleming.",
    "Amazon River": "The Amazon in South America carries more water than any other river.",
    "Marie Curie": "Marie Curie won Nobel prizes in physics and in chemistry.",
    "Chess": "Chess is a board game for two players with sixteen pieces each.",
    "Saturn": "Saturn is the planet with the most prominent rings.",
    "Espresso": "Espresso is coffee brewed by forcing hot water through fine grounds.",
}


def corpus_file(folder, rows=None, name="corpus.jsonl"):
    """A corpus file of ``rows``, lines or objects; the dozen passages by default."""
    if rows is None:
        rows = [{"id": t, "contents": f'"{t}"\n{text}'} for t, text in PASSAGES.items()]
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def letters(width=8):
    """A bare embedding: how often each of the first letters of the alphabet occurs."""

    def embed(texts):
        counts = [[text.lower().count(chr(97 + i)) + 0.01 for i in range(width)] for text in texts]
        return np.array(counts, np.float32)

    return embed


def toy_encoder(width=8, name="toy-e5", family="e5", embed=None):
    return PrefixEncoder(name, family, embed or letters(width), width)


def flat_index(*vectors):
    index = faiss.IndexFlatIP(len(vectors[0]))
    index.add(np.array(vectors, np.float32))
    return index


def corpus_of(folder, size):
    return Corpus(
        corpus_file(folder, [{"id": str(i), "contents": f"row {i}"} for i in range(size)])
    )


# -- the corpus


def test_a_title_and_text_row_becomes_contents_and_other_keys_stay(tmp_path):
    rows = [{"id": 2, "title": "Reef", "text": "Fish.", "url": "u"}, {"id": "3", "text": "Bare"}]
    assert list(read_rows(corpus_file(tmp_path, rows))) == [
        {"id": "2", "contents": '"Reef"\nFish.', "url": "u"},
        {"id": "3", "contents": '""\nBare'},
    ]


def test_blank_lines_a_byte_order_mark_and_gzip_change_nothing(tmp_path):
    plain = corpus_file(tmp_path, [{"id": "0", "contents": "a"}, {"id": "1", "contents": "é"}])
    messy = tmp_path / "messy.jsonl"
    messy.write_bytes(b"\xef\xbb\xbf" + plain.read_bytes().replace(b"\n", b"\r\n \n"))
    zipped = tmp_path / "corpus.jsonl.gz"
    zipped.write_bytes(gzip.compress(messy.read_bytes()))
    rows = list(read_rows(plain))
    assert rows == list(read_rows(messy)) == list(read_rows(zipped)) == list(Corpus(messy))
    with pytest.raises(ValueError, match="gunzip"):
        Corpus(zipped)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("{not json", "line 2: not a line of JSON"),
        ('["list"]', "line 2: got list, expected an object"),
        ({"contents": "a"}, "line 2: got id=None"),
        ({"id": "1"}, "line 2: got contents=None"),
        ({"id": "1", "contents": 5}, "line 2: got contents=5"),
        ({"id": "1", "contents": " "}, "line 2: contents is empty"),
        ({"id": "0", "contents": "a"}, "line 2: the id '0' is taken by line 1"),
    ],
)
def test_a_faulty_row_is_reported_with_its_line_number(tmp_path, row, says):
    path = corpus_file(tmp_path, [{"id": "0", "contents": "first"}, row])
    with pytest.raises(ValueError, match=says):
        list(read_rows(path))


def test_rows_are_read_by_number_and_minus_one_is_not_the_last(tmp_path):
    corpus = corpus_of(tmp_path, 3)
    assert corpus[2]["id"] == "2"
    for row in (-1, 3):
        with pytest.raises(IndexError, match=f"row {row} .* has 3 rows"):
            corpus[row]


def test_a_lone_surrogate_in_a_corpus_becomes_the_replacement_character(tmp_path):
    path = corpus_file(tmp_path, ['{"id": "0", "contents": "kelp \\ud83d"}'])
    assert Corpus(path)[0]["contents"] == "kelp \ufffd"


# -- the encoder


def test_e5_prefixes_are_added_once_and_never_twice():
    seen = []
    encoder = toy_encoder(embed=lambda texts: seen.extend(texts) or letters()(texts))
    encoder.encode_queries(["kelp", "query: kelp"])
    encoder.encode_passages(["kelp"])
    assert seen == ["query: kelp", "query: kelp", "passage: kelp"]


def test_a_family_that_normalises_gives_unit_vectors():
    vectors = {"up": [0, 1, 0, 0], "long": [3, 4, 0, 0], "unit": [0.6, 0.8, 0, 0]}
    up, *others = np.array(list(vectors.values()), np.float32)
    assert [float(other @ up) for other in others] == pytest.approx([4.0, 0.8])
    embed = lambda texts: np.array([vectors[t] for t in texts])  # noqa: E731
    encoder = toy_encoder(4, "minilm", "minilm", embed)
    assert encoder.encode_passages(["long", "unit"]) @ up == pytest.approx([0.8, 0.8])


@pytest.mark.parametrize(
    ("name", "family"),
    [("intfloat/e5-base-v2", "e5"), ("/m/bge-large-en", "bge"), ("minilm", "minilm")],
)
def test_the_family_is_read_from_the_models_name(name, family):
    assert family_of(name) == family_of("anything", family) == family


def test_an_unknown_family_and_an_absent_model_are_refused_with_what_to_do(tmp_path):
    with pytest.raises(ValueError, match=r"gte.*expected exactly one of e5, bge, minilm.*--family"):
        family_of("gte-base")
    with pytest.raises(ValueError, match="got the family 'x'"):
        family_of("e5", "x")
    with pytest.raises(ValueError, match=r"local model cache.*--allow-download"):
        load_encoder("nobody/e5-absent")


def test_a_model_that_pools_unlike_its_family_is_refused():
    with pytest.raises(ValueError, match=r"'minilm' pools by \['mean'\], expected 'cls'"):
        load_encoder("minilm", family="bge")


def test_a_download_is_refused_where_the_environment_is_offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ValueError, match="HF_HUB_OFFLINE"):
        load_encoder("nobody/e5-absent", allow_download=True)


# -- search


def test_fewer_documents_than_topk_give_just_those_documents(tmp_path):
    index = flat_index([1, 0, 0, 0], [0, 1, 0, 0], [0.6, 0.8, 0, 0])
    embed = lambda texts: np.array([[1, 0.1, 0, 0]] * len(texts))  # noqa: E731
    backend = FaissBackend(index, corpus_of(tmp_path, 3), toy_encoder(4, embed=embed))
    (hits,) = backend.search(["row 0"], 5)
    assert [hit.document["id"] for hit in hits] == ["0", "2", "1"]


def test_ids_of_minus_one_are_dropped(tmp_path):
    class Padding:
        d, ntotal, metric_type = 4, 3, faiss.METRIC_INNER_PRODUCT

        def search(self, vectors, k):
            return np.array([[0.9, 0.8, 0.7, -1, -1]]), np.array([[0, 2, 1, -1, -1]])

    backend = FaissBackend(Padding(), corpus_of(tmp_path, 3), toy_encoder(4))
    (hits,) = backend.search(["kelp"], 5)
    assert [(hit.document["id"], hit.score) for hit in hits] == [("0", 0.9), ("2", 0.8), ("1", 0.7)]


def test_an_empty_index_finds_nothing_without_an_error(tmp_path):
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    backend = FaissBackend(faiss.IndexFlatIP(4), Corpus(empty), toy_encoder(4))
    assert backend.search(["kelp", "reef"], 5) == [[], []]


def test_an_index_of_another_width_than_the_encoder_is_refused_with_both(tmp_path):
    with pytest.raises(ValueError, match=r"vectors of width 4, .* vectors of width 8"):
        FaissBackend(flat_index([1, 0, 0, 0]), corpus_of(tmp_path, 1), toy_encoder(8))


def test_a_corpus_of_another_size_than_the_index_is_refused_with_both(tmp_path):
    with pytest.raises(ValueError, match="1 vectors, but the corpus has 2 rows"):
        FaissBackend(flat_index([1, 0, 0, 0]), corpus_of(tmp_path, 2), toy_encoder(4))


def test_an_index_without_normalisation_is_refused_where_the_encoder_normalises(tmp_path):
    with pytest.raises(ValueError, match="length 5, expected 1"):
        FaissBackend(flat_index([3, 4, 0, 0]), corpus_of(tmp_path, 1), toy_encoder(4))


def test_an_index_by_distance_is_refused(tmp_path):
    index = faiss.IndexFlatL2(4)
    index.add(np.array([[1, 0, 0, 0]], np.float32))
    with pytest.raises(ValueError, match="expected inner product"):
        FaissBackend(index, corpus_of(tmp_path, 1), toy_encoder(4))


# -- the index directory


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_finds_again_what_it_indexed(tmp_path, backend):
    encoder = toy_encoder(26) if BACKENDS[backend].needs_encoder else None
    build_index(corpus_file(tmp_path), tmp_path / "index", backend=backend, encoder=encoder)
    opened = open_index(tmp_path / "index", encoder=encoder)
    assert len(opened) == len(PASSAGES)
    queries = [f'"{title}"\n{text}' for title, text in PASSAGES.items()]
    if encoder is not None:
        queries = [f"passage: {query}" for query in queries]
        encoder.family = FAMILIES["minilm"]
    found = opened.search(queries, 100)
    assert [hits[0].document["id"] for hits in found] == list(PASSAGES)
    for hits in found:
        scores = [hit.score for hit in hits]
        assert scores == sorted(scores, reverse=True)


def test_bm25_finds_nothing_for_words_it_does_not_know(tmp_path):
    build_index(corpus_file(tmp_path), tmp_path / "index", backend="bm25")
    opened = open_index(tmp_path / "index")
    assert [len(hits) for hits in opened.search(["zyzzyva", "the", "", "towers"], 5)] == [
        0,
        0,
        0,
        1,
    ]


def test_the_manifest_holds_what_the_index_was_built_from(tmp_path):
    written = build_index(corpus_file(tmp_path), tmp_path / "index", encoder=toy_encoder())
    read = Manifest.read(tmp_path / "index")
    assert read == written
    assert read.rows == 12 and len(read.corpus_sha256) == 64
    assert read.encoder is not None
    assert (read.encoder.query_prefix, read.encoder.dim) == ("query: ", 8)


def test_a_build_that_fails_leaves_nothing_behind(tmp_path):
    def broken(texts):
        raise RuntimeError("out of memory")

    corpus = corpus_file(tmp_path)
    with pytest.raises(RuntimeError, match="out of memory"):
        build_index(corpus, tmp_path / "index", encoder=toy_encoder(embed=broken))
    assert list(tmp_path.iterdir()) == [corpus]


def test_an_index_is_replaced_on_request_only_and_survives_a_failed_rebuild(tmp_path):
    corpus, out = corpus_file(tmp_path), tmp_path / "index"
    build_index(corpus, out, backend="bm25")
    with pytest.raises(ValueError, match="--overwrite"):
        build_index(corpus, out, backend="bm25")
    with pytest.raises(ValueError, match="line 1"):
        build_index(corpus_file(tmp_path, ["{"], "bad.jsonl"), out, backend="bm25", overwrite=True)
    assert Manifest.read(out).backend == "bm25"
    build_index(corpus, out, encoder=toy_encoder(), overwrite=True)
    assert Manifest.read(out).backend == "faiss"
    assert {path.name for path in tmp_path.iterdir()} == {"corpus.jsonl", "bad.jsonl", "index"}


def test_a_directory_that_is_no_index_is_never_replaced(tmp_path):
    (tmp_path / "thesis").mkdir()
    with pytest.raises(ValueError, match="exists and is no index"):
        building.check_target(tmp_path / "thesis", overwrite=True)


def test_a_corpus_without_rows_is_refused(tmp_path):
    with pytest.raises(ValueError, match="has no rows"):
        build_index(corpus_file(tmp_path, [""]), tmp_path / "index", backend="bm25")


@pytest.mark.parametrize(
    ("encoder", "says"),
    [
        (toy_encoder(4), "'toy-e5' .dim 8., but the encoder 'toy-e5' has dim 4"),
        (toy_encoder(8, "toy-bge", "bge"), "family 'e5'.*'toy-bge' has family 'bge'"),
        (toy_encoder(8, embed=lambda t: letters(8)(t)[:, ::-1]), "cosine of only"),
    ],
)
def test_an_encoder_that_did_not_build_the_index_is_refused_with_both_names(
    tmp_path, encoder, says
):
    build_index(corpus_file(tmp_path), tmp_path / "index", encoder=toy_encoder())
    with pytest.raises(ValueError, match=says):
        open_index(tmp_path / "index", encoder=encoder)


def test_a_changed_or_different_corpus_is_refused(tmp_path):
    build_index(corpus_file(tmp_path), tmp_path / "index", backend="bm25")
    other = corpus_file(tmp_path, [{"id": "0", "contents": "other"}], "other.jsonl")
    with pytest.raises(ValueError, match="fingerprint"):
        open_index(tmp_path / "index", corpus=other)
    assert open_index(tmp_path / "index", corpus=tmp_path / "corpus.jsonl")
    inside = tmp_path / "index" / "corpus.jsonl"
    inside.write_text(inside.read_text().replace("Kelp", "Help"))
    with pytest.raises(ValueError, match="changed since the index was built"):
        open_index(tmp_path / "index")


def test_a_bare_faiss_file_opens_with_its_corpus_and_a_doubtful_encoder_is_warned_of(
    tmp_path, caplog
):
    corpus = corpus_file(tmp_path)
    build_index(corpus, tmp_path / "index", encoder=toy_encoder())
    path = tmp_path / "e5_Flat.index"
    (tmp_path / "index" / "faiss.index").rename(path)
    opened = open_index(path, corpus=corpus, encoder=toy_encoder())
    assert len(opened.search(["kelp"], 3)[0]) == 3
    assert not caplog.records
    open_index(path, corpus=corpus, encoder=toy_encoder(embed=lambda t: letters(8)(t)[:, ::-1]))
    assert "is it the right model" in caplog.text
    with pytest.raises(ValueError, match="needs --corpus and --encoder"):
        open_index(path)
    path.write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="no FAISS index file"):
        open_index(path, corpus=corpus, encoder=toy_encoder())


def test_search_r1_flags_are_understood():
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers()
    add_serve_parser(commands)
    add_index_parser(commands)
    line = "serve --index_path e5_Flat.index --corpus_path wiki-18.jsonl --topk 5"
    line += " --retriever_name e5 --retriever_model intfloat/e5-base-v2"
    args = parser.parse_args(line.split())
    assert (str(args.index), str(args.corpus)) == ("e5_Flat.index", "wiki-18.jsonl")
    assert (args.family, args.encoder, args.topk) == ("e5", "intfloat/e5-base-v2", 5)
    assert args.host == "127.0.0.1"


def test_minilm_and_faiss_answer_questions_about_a_dozen_passages(tmp_path):
    encoder = load_encoder("minilm")
    build_index(corpus_file(tmp_path), tmp_path / "index", encoder=encoder)
    opened = open_index(tmp_path / "index", encoder=encoder)
    questions = {
        "What is the tallest peak on Earth?": "Mount Everest",
        "Who found the first antibiotic?": "Penicillin",
        "Which planet has rings?": "Saturn",
        "seaweed of underwater forests": "Kelp",
    }
    found = opened.search(list(questions), 1)
    assert [hits[0].document["id"] for hits in found] == list(questions.values())
    assert all(0.2 < hits[0].score < 1.0 for hits in found)
