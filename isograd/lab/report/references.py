"""The papers of placements, as BibTeX."""

from collections.abc import Iterable

_PAPERS = {  # how a placement's `paper` begins: key, authors, title, year, arXiv or where
    "Vaswani et al. 2017": (
        "vaswani2017attention",
        "Vaswani, Ashish and Shazeer, Noam and Parmar, Niki and Uszkoreit, Jakob and Jones, Llion and Gomez, Aidan N."
        " and Kaiser, Lukasz and Polosukhin, Illia",
        "Attention Is All You Need",
        "1706.03762",
    ),
    "Xiong et al. 2020": (
        "xiong2020layer",
        "Xiong, Ruibin and Yang, Yunchang and He, Di and Zheng, Kai and Zheng, Shuxin and Xing, Chen"
        " and Zhang, Huishuai and Lan, Yanyan and Wang, Liwei and Liu, Tie-Yan",
        "On Layer Normalization in the Transformer Architecture",
        "2002.04745",
    ),
    "Radford et al. 2019": (
        "radford2019language",
        "Radford, Alec and Wu, Jeffrey and Child, Rewon and Luan, David and Amodei, Dario and Sutskever, Ilya",
        "Language Models are Unsupervised Multitask Learners",
        "",
    ),
    "Shleifer et al. 2021": (
        "shleifer2021normformer",
        "Shleifer, Sam and Weston, Jason and Ott, Myle",
        "NormFormer: Improved Transformer Pretraining with Extra Normalization",
        "2110.09456",
    ),
    "Liu et al.": (
        "liu2020understanding",
        "Liu, Liyuan and Liu, Xiaodong and Gao, Jianfeng and Chen, Weizhu and Han, Jiawei",
        "Understanding the Difficulty of Training Transformers",
        "2004.08249",
    ),
    "Wang et al. 2022": (
        "wang2022deepnet",
        "Wang, Hongyu and Ma, Shuming and Dong, Li and Huang, Shaohan and Zhang, Dongdong and Wei, Furu",
        "DeepNet: Scaling Transformers to 1,000 Layers",
        "2203.00555",
    ),
    "Dehghani et al. 2023": (
        "dehghani2023scaling",
        "Dehghani, Mostafa and Djolonga, Josip and Mustafa, Basil and Padlewski, Piotr and Heek, Jonathan and others",
        "Scaling Vision Transformers to 22 Billion Parameters",
        "2302.05442",
    ),
}


def bibtex(papers: Iterable[str | None]) -> str:
    """An entry for each of these papers, as placements name them; one that is not known here is a note.

    >>> bibtex(["Wang et al. 2022, arXiv 2203.00555", "Somebody 2030"]).count("@")
    2
    """
    entries = dict(_entry(paper) for paper in papers if paper)
    return "\n".join(entries.values())


def _entry(paper: str) -> tuple[str, str]:
    found = next((entry for begin, entry in _PAPERS.items() if paper.startswith(begin)), None)
    if found is None:
        key = "".join(filter(str.isalnum, paper)).lower()[:32]
        return key, f"@misc{{{key},\n  note = {{{paper}}},\n}}\n"
    key, author, title, arxiv = found
    fields = {"title": title, "author": author, "year": "".join(filter(str.isdigit, key))}
    fields["journal"] = f"arXiv preprint arXiv:{arxiv}" if arxiv else ""
    body = "".join(f"  {name} = {{{value}}},\n" for name, value in fields.items() if value)
    return key, f"@{'article' if arxiv else 'misc'}{{{key},\n{body}}}\n"
