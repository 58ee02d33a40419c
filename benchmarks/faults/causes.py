"""The true causes, written before any tool was asked."""

from benchmarks.faults.fault import Cause

CAUSES = {
    cause.name: cause
    for cause in (
        Cause(name="no-mask", title="a model of the next token reads the tokens after it", remedy="mask|causal"),
        Cause(name="mask-shifted", title="the mask is off by one place", remedy="mask|causal|diagonal|triu|tril"),
        Cause(name="mask-turned", title="the mask hides the past, not the future", remedy="mask|causal|triu|tril"),
        Cause(name="mask-weak", title="what is masked keeps a weight", remedy="mask|inf|causal|softmax"),
        Cause(
            name="softmax-axis", title="the softmax is over another axis than the keys", remedy="softmax|dim|axis|keys"
        ),
        Cause(
            name="batch-mixed", title="examples of one batch read each other", remedy="batch|first|dim|axis|transpose"
        ),
        Cause(name="attention-scale", title="the scores are not over sqrt(head width)", remedy="scale|sqrt|head"),
        Cause(
            name="head-order", title="heads are split or merged without the transpose", remedy="transpose|permute|head"
        ),
        Cause(name="positions-missing", title="positions are made and not used", remedy="position|rotary|rope"),
        Cause(name="positions-equal", title="all places get the same position", remedy="position|rotary|arange"),
        Cause(name="rotary-on-values", title="values are rotated, too", remedy="rotary|rope|value|rotat"),
        Cause(name="rotary-one-side", title="queries are rotated and keys are not", remedy="rotary|rope|key|rotat"),
        Cause(
            name="projection-unused",
            title="a projection is never read",
            remedy="key|quer|value|unused|call|use|read|remove",
        ),
        Cause(name="residual-dropped", title="a sublayer has no shortcut", remedy="residual|shortcut|skip|x \\+|add"),
        Cause(
            name="residual-doubled",
            title="the shortcut is added twice",
            remedy="residual|shortcut|skip|twice|once|doubl|coefficient",
        ),
        Cause(
            name="residual-after-norm",
            title="the shortcut starts after the norm",
            remedy="residual|shortcut|skip|before the norm|norm",
        ),
        Cause(
            name="final-norm-missing",
            title="a Pre-LN stack ends without a norm",
            remedy="final norm|norm after|last layer|norm=",
        ),
        Cause(name="norm-missing", title="a branch reads the stream without its norm", remedy="norm"),
        Cause(
            name="norm-wrong-one", title="a norm is used in the place of another one", remedy="norm|shared|twice|unused"
        ),
        Cause(name="norm-axis", title="the norm is over places, not features", remedy="norm|axis|dim|last"),
        Cause(name="norm-scale", title="what the norm returns is not of RMS 1", remedy="norm|mean|sqrt|rms|eps"),
        Cause(name="norm-weight", title="norm weights do not begin at 1", remedy="weight|ones|1|norm"),
        Cause(name="norm-eps", title="eps is larger than the variance that it guards", remedy="eps"),
        Cause(
            name="no-activation",
            title="the feed-forward is linear",
            remedy="activation|gelu|relu|silu|nonlinear|non-linear",
        ),
        Cause(
            name="activation-on-stream",
            title="an activation stands on the stream itself",
            remedy="activation|relu|gelu|stream|branch|positive",
        ),
        Cause(name="dropout-high", title="dropout is near 1", remedy="dropout|p="),
        Cause(name="dropout-always", title="dropout acts in eval mode, too", remedy="dropout|training|eval|random"),
        Cause(
            name="layers-shared",
            title="one layer stands at all depths by accident",
            remedy="shar|same|copy|deepcopy|each layer|own",
        ),
        Cause(
            name="layers-skipped", title="layers are built and not called", remedy="call|loop|unused|never|skip|read"
        ),
        Cause(
            name="unregistered",
            title="layers in a Python list are not registered",
            remedy="ModuleList|register|list|parameters",
        ),
        Cause(name="init-zero", title="a matrix was never initialized, or is zero", remedy="init|zero"),
        Cause(name="init-large", title="matrices are initialized far too large", remedy="init|std|small|smaller"),
        Cause(name="init-small", title="matrices are initialized far too small", remedy="init|std|larger"),
        Cause(
            name="init-depth",
            title="the output matrices do not follow their law of depth",
            remedy="init|std|depth|sqrt|smaller",
        ),
        Cause(
            name="init-constant",
            title="rows of a matrix are equal, so that units never differ",
            remedy="init|constant|equal|rows|symmetr|copies|random|same",
        ),
        Cause(
            name="init-mean", title="a matrix has a mean far from zero", remedy="init|mean|randn|normal|centre|center"
        ),
        Cause(name="init-partial", title="a part of a matrix was never initialized", remedy="init|zero|rows|head|part"),
        Cause(name="embedding-zero", title="token vectors are zero", remedy="embed|init|zero"),
        Cause(
            name="embedding-large",
            title="token vectors are far larger than the layers' writes",
            remedy="embed|init|std|smaller",
        ),
        Cause(
            name="position-large", title="position vectors drown the tokens", remedy="position|init|std|smaller|scale"
        ),
        Cause(
            name="logit-scale",
            title="logits of the fresh model are far too large",
            remedy="head|logit|init|std|scale|smaller|tie",
        ),
        Cause(name="non-finite", title="a value is not finite", remedy="inf|nan|finite|mask|init|weight"),
        Cause(
            name="gradient-cut",
            title="the gradient does not reach what stands before",
            remedy="detach|no_grad|gradient|requires_grad|data",
        ),
        Cause(name="frozen", title="parameters are frozen that are to be trained", remedy="frozen|requires_grad|train"),
        Cause(name="last-only", title="only the last place is returned", remedy="position|last|all|slice|\\[:"),
        Cause(
            name="softmax-output",
            title="probabilities are returned where logits are expected",
            remedy="softmax|logits|probabilit",
        ),
        Cause(
            name="optimizer-lacks-parameters",
            title="the optimizer does not hold all parameters",
            remedy="optimizer|parameters|group",
        ),
        Cause(
            name="optimizer-of-another-model",
            title="the optimizer holds parameters of another model",
            remedy="optimizer|parameters|after",
        ),
        Cause(name="lr-zero", title="a group's learning rate is 0", remedy="rate|lr|schedul"),
        Cause(name="lr-high", title="a group's learning rate is far above the others'", remedy="rate|lr"),
        Cause(name="norms-decayed", title="weight decay pulls on norm weights", remedy="decay|group"),
        Cause(
            name="scale-stray",
            title="a constant factor on the branch belongs to no law",
            remedy="factor|constant|scale|coefficient|remove",
        ),
    )
}
